//! `token_bucket`: GCRA, kept as the backlog that has yet to drain, in integers (see `TokenRate`).

use crate::batch::BucketSpec;
use crate::verdict::Look;

#[derive(Clone, Debug)]
pub(super) struct Token {
    /// Fine units that had not drained at `as_of_us`.
    backlog: u64,
    as_of_us: u64,
    /// When the backlog was last empty; nothing taken earlier can be given back.
    born_us: u64,
}

impl Token {
    pub(super) fn empty() -> Self {
        Token {
            backlog: 0,
            as_of_us: 0,
            born_us: 0,
        }
    }

    /// If the clock stepped back, the backlog drains from the new now on, not from the old one.
    pub(super) fn heal(&mut self, now_us: u64) {
        if self.as_of_us > now_us {
            self.as_of_us = now_us;
            self.born_us = now_us + 1;
        }
    }

    fn backlog(&self, spec: &BucketSpec, now_us: u64) -> u64 {
        let passed = now_us.saturating_sub(self.as_of_us);
        let drained = passed.saturating_mul(spec.token_rate().per_us);
        self.backlog.saturating_sub(drained)
    }

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let rate = spec.token_rate();
        let backlog = self.backlog(spec, now_us);
        let full = spec.most_at_once() * rate.per_unit;
        let excess = if cost == 0 {
            0
        } else {
            (backlog + cost * rate.per_unit).saturating_sub(full)
        };
        Look {
            retry_us: excess.div_ceil(rate.per_us),
            remaining: full.saturating_sub(backlog) / rate.per_unit,
            reset_us: backlog.div_ceil(rate.per_us),
        }
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let backlog = self.backlog(spec, now_us);
        if backlog == 0 {
            self.born_us = now_us;
        }
        self.backlog = backlog + cost * spec.token_rate().per_unit;
        self.as_of_us = now_us;
    }

    /// What has drained since was as if returned already. A part of a unit is reported as one.
    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        left: u64,
        at_us: u64,
    ) -> u64 {
        let rate = spec.token_rate();
        let backlog = self.backlog(spec, now_us);
        if at_us < self.born_us || at_us > now_us {
            return 0;
        }
        let drained = (now_us - at_us).saturating_mul(rate.per_us);
        let undrained = (left * rate.per_unit).saturating_sub(drained);
        let fine = (cost * rate.per_unit).min(undrained).min(backlog);
        if fine > 0 {
            self.backlog = backlog - fine;
            self.as_of_us = now_us;
        }
        fine.div_ceil(rate.per_unit)
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        let drains_in = self.backlog.div_ceil(spec.token_rate().per_us);
        self.as_of_us.saturating_add(drains_in)
    }
}
