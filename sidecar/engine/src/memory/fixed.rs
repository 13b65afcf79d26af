//! `fixed_window`: one counter for each window aligned to the store's clock.

use crate::batch::BucketSpec;
use crate::verdict::Look;

#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// Which window the count is of: `now / window`.
    window: u64,
    count: u64,
    /// When what is counted began to be taken; nothing taken earlier can be given back.
    born_us: u64,
}

impl Fixed {
    pub(super) fn empty() -> Self {
        Fixed {
            window: 0,
            count: 0,
            born_us: 0,
        }
    }

    /// If the clock stepped back over an edge, what was taken in this window before is forgotten:
    /// so it counts as full. Never over, and locked for one window at most.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) {
        let window = now_us / spec.window_us;
        if self.count > 0 && self.window > window {
            self.window = window;
            self.count = self.count.max(spec.limit);
            self.born_us = now_us + 1;
        }
    }

    fn used(&self, spec: &BucketSpec, now_us: u64) -> u64 {
        if self.window == now_us / spec.window_us {
            self.count
        } else {
            0
        }
    }

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let used = self.used(spec, now_us);
        let to_edge = spec.window_us - now_us % spec.window_us;
        let room = cost == 0 || used + cost <= spec.limit;
        Look {
            retry_us: if room { 0 } else { to_edge },
            remaining: spec.limit.saturating_sub(used),
            reset_us: if used == 0 { 0 } else { to_edge },
        }
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let used = self.used(spec, now_us);
        if used == 0 {
            self.window = now_us / spec.window_us;
            self.born_us = now_us;
        }
        self.count = used + cost;
    }

    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        at_us: u64,
    ) -> u64 {
        if at_us < self.born_us || at_us > now_us || at_us / spec.window_us != self.window {
            return 0;
        }
        let returned = self.used(spec, now_us).min(cost);
        self.count -= returned;
        returned
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        if self.count == 0 {
            0
        } else {
            (self.window + 1) * spec.window_us
        }
    }
}
