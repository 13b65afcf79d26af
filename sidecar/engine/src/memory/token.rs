//! `token_bucket`: GCRA, kept as the backlog that has yet to drain, in integers (see `TokenRate`).

use super::order::in_order;
use crate::batch::{BucketSpec, Record};
use crate::check::TokenRate;
use crate::verdict::Look;

#[derive(Clone, Debug)]
pub(super) struct Token {
    /// Fine units that had not drained at `as_of_us`.
    backlog: u64,
    as_of_us: u64,
    /// When the backlog was last empty; nothing taken earlier can be given back.
    born_us: u64,
    /// The rate that the backlog is counted by.
    rate: TokenRate,
}

impl Token {
    pub(super) fn empty() -> Self {
        Token {
            backlog: 0,
            as_of_us: 0,
            born_us: 0,
            rate: TokenRate {
                per_us: 1,
                per_unit: 1,
            },
        }
    }

    /// If the clock stepped back, the backlog drains from the new now on, not from the old one.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        let is_later = self.as_of_us > now_us;
        if is_later {
            // Nothing has passed by the new clock, so nothing drains here.
            let rate = spec.token_rate();
            self.set(rate, self.backlog(spec, rate, now_us), now_us);
            self.born_us = now_us + 1;
        }
        is_later
    }

    fn set(&mut self, rate: TokenRate, backlog: u64, now_us: u64) {
        (self.backlog, self.as_of_us, self.rate) = (backlog, now_us, rate);
    }

    /// As it was stored, in the units of `rate`, which is that of `spec`. Counted by another rate it is rounded up, and a
    /// full bucket at most: what that rate has let in must not take hours to drain by this one. It is cut as of when it
    /// was stored: looks do not store it anew, and have to see it drain.
    fn stored(&self, spec: &BucketSpec, rate: TokenRate) -> u64 {
        if rate == self.rate {
            return self.backlog;
        }
        let (from, to) = (self.rate.per_unit, rate.per_unit);
        let scaled = (u128::from(self.backlog) * u128::from(to)).div_ceil(u128::from(from.max(1)));
        let full = spec.most_at_once() * to;
        u64::try_from(scaled).map_or(full, |scaled| scaled.min(full))
    }

    /// What has not drained, in the units of `rate`, which is that of `spec`.
    fn backlog(&self, spec: &BucketSpec, rate: TokenRate, now_us: u64) -> u64 {
        let passed = now_us.saturating_sub(self.as_of_us);
        let drained = passed.saturating_mul(rate.per_us);
        self.stored(spec, rate).saturating_sub(drained)
    }

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let rate = spec.token_rate();
        let backlog = self.backlog(spec, rate, now_us);
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
            quota: spec.most_at_once(),
        }
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let rate = spec.token_rate();
        let backlog = self.backlog(spec, rate, now_us);
        if backlog == 0 {
            self.born_us = now_us;
        }
        self.set(rate, backlog + cost * rate.per_unit, now_us);
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
        let backlog = self.backlog(spec, rate, now_us);
        if at_us < self.born_us || at_us > now_us {
            return 0;
        }
        let drained = (now_us - at_us).saturating_mul(rate.per_us);
        // Units of a larger quota may be more than this one can count.
        let undrained = left.saturating_mul(rate.per_unit).saturating_sub(drained);
        let fine = cost.saturating_mul(rate.per_unit);
        let fine = fine.min(undrained).min(backlog);
        if fine > 0 {
            self.set(rate, backlog - fine, now_us);
        }
        fine.div_ceil(rate.per_unit)
    }

    /// Adds what was taken elsewhere, less what came back since; how many units, a part of one counted as one.
    ///
    /// While the bucket held something, it drained that; only while it was empty could the new units have drained
    /// instead. When it was last empty is known from when it began to hold something (or, if it is empty, from when
    /// it had drained); before that it counts as empty.
    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let (rate, most) = (spec.token_rate(), spec.max_backlog());
        let drains = |us: u64| us.saturating_mul(rate.per_us);
        let (mut backlog, mut born_us) = (self.backlog(spec, rate, now_us), self.born_us);
        let mut emptied_us = match self.backlog {
            0 => 0,
            _ => self.empty_at_us(spec),
        };
        let mut recorded = 0;
        for Record { at_us, units } in in_order(records, |record| record.at_us.min(now_us)) {
            let fine = units.min(most / rate.per_unit) * rate.per_unit;
            let gain = if backlog == 0 {
                let from_us = at_us.max(emptied_us);
                emptied_us = from_us + fine.div_ceil(rate.per_us);
                fine.saturating_sub(drains(now_us.saturating_sub(from_us)))
            } else if at_us < born_us && born_us <= now_us {
                fine.saturating_sub(drains(born_us - at_us))
            } else {
                fine
            };
            if gain > 0 && (backlog == 0 || at_us < born_us && born_us <= now_us) {
                born_us = at_us;
            }
            let gain = gain.min(most - backlog.min(most));
            backlog += gain;
            recorded += gain.div_ceil(rate.per_unit);
        }
        if recorded > 0 {
            self.set(rate, backlog, now_us);
            self.born_us = born_us;
        }
        recorded
    }

    /// What it holds now, as if it had been taken now.
    pub(super) fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        let rate = spec.token_rate();
        let backlog = self.backlog(spec, rate, now_us);
        let record = Record {
            at_us: now_us,
            units: backlog.div_ceil(rate.per_unit),
        };
        Vec::from_iter((backlog > 0).then_some(record))
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        let rate = spec.token_rate();
        let drains_in = self.stored(spec, rate).div_ceil(rate.per_us);
        self.as_of_us.saturating_add(drains_in)
    }
}
