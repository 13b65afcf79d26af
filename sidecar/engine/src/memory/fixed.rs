//! `fixed_window`: one counter for each window aligned to the store's clock.

use super::order::in_order;
use crate::batch::{BucketSpec, Record};
use crate::check::MAX_HELD;
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
    /// so it counts as full. Never over, and locked for one window at most. Over one edge, the count of the
    /// window that follows is kept beside that, or the clock could pass the edge once more and find it empty.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) {
        let window = now_us / spec.window_us;
        if self.count > 0 && self.window > window + 1 {
            self.window = window;
            self.count = self.count.max(spec.limit);
            self.born_us = now_us + 1;
        }
    }

    /// The clock stepped back over one edge: the count is of the window that follows.
    fn is_of_following(&self, spec: &BucketSpec, now_us: u64) -> bool {
        self.count > 0 && self.window == now_us / spec.window_us + 1
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
        if self.is_of_following(spec, now_us) {
            let room_after_edge = self.count + cost <= spec.limit;
            let after_that = to_edge + spec.window_us;
            return Look {
                retry_us: match (cost, room_after_edge) {
                    (0, _) => 0,
                    (_, true) => to_edge,
                    (_, false) => after_that,
                },
                remaining: 0,
                reset_us: after_that,
                quota: spec.limit,
            };
        }
        let room = cost == 0 || used + cost <= spec.limit;
        Look {
            retry_us: if room { 0 } else { to_edge },
            remaining: spec.limit.saturating_sub(used),
            reset_us: if used == 0 { 0 } else { to_edge },
            quota: spec.limit,
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

    /// Adds what was taken elsewhere in the window that is counted; how many units.
    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let following = self.is_of_following(spec, now_us);
        let (window, held) = if following {
            (self.window, self.count)
        } else {
            (now_us / spec.window_us, self.used(spec, now_us))
        };
        let at_us = |record: &Record| match following {
            true => record.at_us,
            false => record.at_us.min(now_us),
        };
        let mut recorded = 0;
        for record in in_order(records, at_us) {
            if record.at_us / spec.window_us == window {
                recorded += record.units.min(MAX_HELD - held - recorded);
            }
        }
        if recorded > 0 && following {
            self.count += recorded;
        } else if recorded > 0 {
            self.take(spec, now_us, recorded);
        }
        recorded
    }

    /// What it holds. In the middle of its window, so that a clock that differs a little finds the same window.
    pub(super) fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        let units = if self.is_of_following(spec, now_us) {
            self.count
        } else {
            self.used(spec, now_us)
        };
        let at_us = self.window * spec.window_us + spec.window_us / 2;
        let record = Record { at_us, units };
        Vec::from_iter((units > 0).then_some(record))
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        if self.count == 0 {
            0
        } else {
            (self.window + 1) * spec.window_us
        }
    }
}
