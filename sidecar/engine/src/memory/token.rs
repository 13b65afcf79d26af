//! `token_bucket`: GCRA, kept as the backlog that has yet to drain, in integers (see `TokenRate`).

use super::records::in_order;
use crate::batch::{BucketSpec, Record};
use crate::check::TokenRate;
use crate::verdict::Look;

/// A backlog in fine units of the rate by which it drains.
#[derive(Clone, Copy, Debug)]
struct Backlog {
    fine: u64,
    rate: TokenRate,
}

/// What a change of the policy does not cut: every taking, drained by the fastest rate that has taken since.
#[derive(Clone, Copy, Debug)]
struct Uncut {
    backlog: Backlog,
    /// The burst that the other backlog was cut to: larger ones find this one.
    burst: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    /// What had not drained at `as_of_us`, by the rate of the last decision that took something.
    backlog: Backlog,
    /// The same without cuts, where that is more.
    uncut: Option<Box<Uncut>>,
    as_of_us: u64,
    /// When the backlog was last empty; nothing taken earlier can be given back.
    born_us: u64,
}

impl Backlog {
    const EMPTY: Self = Backlog {
        fine: 0,
        rate: TokenRate {
            per_us: 1,
            per_unit: 1,
        },
    };

    fn drained(self, passed_us: u64) -> Self {
        let drained = passed_us.saturating_mul(self.rate.per_us);
        Backlog {
            fine: self.fine.saturating_sub(drained),
            ..self
        }
    }

    fn plus(self, units: u64) -> Self {
        let fine = units.saturating_mul(self.rate.per_unit);
        Backlog {
            fine: self.fine.saturating_add(fine).min(TokenRate::MAX_BACKLOG),
            ..self
        }
    }

    /// In fine units of another rate, rounded up, as far as it can count.
    fn counted_by(self, rate: TokenRate) -> Self {
        if rate == self.rate {
            return self;
        }
        let (from, to) = (self.rate.per_unit.max(1), rate.per_unit);
        let fine = (u128::from(self.fine) * u128::from(to)).div_ceil(u128::from(from));
        let most = TokenRate::MAX_BACKLOG;
        let fine = u64::try_from(fine).map_or(most, |fine| fine.min(most));
        Backlog { fine, rate }
    }

    fn is_more_than(self, other: Self) -> bool {
        let one = u128::from(self.fine) * u128::from(other.rate.per_unit);
        one > u128::from(other.fine) * u128::from(self.rate.per_unit)
    }

    fn empty_in_us(self) -> u64 {
        self.fine.div_ceil(self.rate.per_us.max(1))
    }

    /// Fine units to return of `cost` units, of `left` that were taken together and are not returned: what has drained
    /// since was as if returned already.
    fn undrained(self, cost: u64, left: u64, passed_us: u64) -> u64 {
        let rate = self.rate;
        let fine = |units: u64| units.saturating_mul(rate.per_unit);
        let undrained = fine(left).saturating_sub(passed_us.saturating_mul(rate.per_us));
        fine(cost).min(undrained).min(self.fine)
    }
}

impl Token {
    pub(super) fn empty() -> Self {
        Token {
            backlog: Backlog::EMPTY,
            uncut: None,
            as_of_us: 0,
            born_us: 0,
        }
    }

    /// If the clock stepped back, the backlog drains from the new now on, not from the old one. What was taken before the
    /// step cannot be told by its time from what is taken until the clock is there again.
    pub(super) fn heal(&mut self, _: &BucketSpec, now_us: u64) -> bool {
        let is_later = self.as_of_us > now_us;
        if is_later {
            (self.as_of_us, self.born_us) = (now_us, self.as_of_us + 1);
        }
        is_later
    }

    const fn passed_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.as_of_us)
    }

    /// The larger of what is stored with and without cuts.
    fn most(&self) -> Backlog {
        let uncut = self.uncut.as_ref().map(|uncut| uncut.backlog);
        let uncut = uncut.filter(|uncut| uncut.is_more_than(self.backlog));
        uncut.unwrap_or(self.backlog)
    }

    /// Whether `spec` may go on with the backlog that was cut: it has its rate, and is not a larger burst.
    fn goes_on(&self, spec: &BucketSpec) -> bool {
        let burst = spec.most_at_once();
        let within = |uncut: &Uncut| burst <= uncut.burst;
        spec.token_rate() == self.backlog.rate && self.uncut.as_deref().is_none_or(within)
    }

    /// As a decision by `spec` finds it stored. What another rate has counted is rounded up, and a full bucket at most:
    /// what that rate has let in must not take hours to drain by this one. It is cut as of when it was stored: looks do not
    /// store it anew, and have to see it drain.
    fn stored(&self, spec: &BucketSpec) -> Backlog {
        let rate = spec.token_rate();
        let uncut = self.uncut.as_ref().map(|uncut| uncut.backlog);
        match uncut.filter(|uncut| uncut.rate == rate) {
            _ if self.goes_on(spec) => self.backlog,
            Some(uncut) => uncut,
            None => {
                let most = self.most().counted_by(rate).fine;
                let fine = most.min(spec.most_at_once() * rate.per_unit);
                Backlog { fine, rate }
            }
        }
    }

    fn backlog(&self, spec: &BucketSpec, now_us: u64) -> Backlog {
        self.stored(spec).drained(self.passed_us(now_us))
    }

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let Backlog { fine, rate } = self.backlog(spec, now_us);
        let full = spec.most_at_once() * rate.per_unit;
        let excess = if cost == 0 {
            0
        } else {
            (fine + cost * rate.per_unit).saturating_sub(full)
        };
        Look {
            retry_us: excess.div_ceil(rate.per_us),
            remaining: full.saturating_sub(fine) / rate.per_unit,
            reset_us: fine.div_ceil(rate.per_us),
            quota: spec.most_at_once(),
        }
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let (rate, backlog, most) = (spec.token_rate(), self.backlog(spec, now_us), self.most());
        let fastest = if rate.is_faster_than(most.rate) {
            rate
        } else {
            most.rate
        };
        let most = most.counted_by(fastest).drained(self.passed_us(now_us));
        let burst = match &self.uncut {
            Some(uncut) if self.goes_on(spec) => uncut.burst,
            _ => spec.most_at_once(),
        };
        if backlog.fine == 0 {
            self.born_us = now_us;
        }
        self.uncut = most.is_more_than(backlog).then(|| {
            let backlog = most.plus(cost);
            Box::new(Uncut { backlog, burst })
        });
        (self.backlog, self.as_of_us) = (backlog.plus(cost), now_us);
    }

    /// What is held by the rates that it is stored by: whoever gives or writes back has no say in the policy.
    fn held(&self, now_us: u64) -> (Backlog, Backlog) {
        let passed_us = self.passed_us(now_us);
        let uncut = self.uncut.as_ref();
        let uncut = uncut.map_or(Backlog::EMPTY, |uncut| uncut.backlog.drained(passed_us));
        (self.backlog.drained(passed_us), uncut)
    }

    /// Stores what is held, by the rates that it is stored by.
    fn hold(&mut self, (backlog, uncut): (Backlog, Backlog), now_us: u64) {
        (self.backlog, self.as_of_us) = (backlog, now_us);
        if uncut.is_more_than(backlog) {
            if let Some(stored) = &mut self.uncut {
                stored.backlog = uncut;
            }
        } else {
            self.uncut = None;
        }
    }

    /// Returns how many units; a part of one is reported as one.
    pub(super) fn give_back(&mut self, now_us: u64, cost: u64, left: u64, at_us: u64) -> u64 {
        if at_us < self.born_us || at_us > now_us {
            return 0;
        }
        let (mut backlog, mut uncut) = self.held(now_us);
        let returned = backlog.undrained(cost, left, now_us - at_us);
        let of_uncut = uncut.undrained(cost, left, now_us - at_us);
        if returned + of_uncut > 0 {
            backlog.fine -= returned;
            uncut.fine -= of_uncut;
            self.hold((backlog, uncut), now_us);
        }
        returned.div_ceil(backlog.rate.per_unit)
    }

    /// Adds what was taken elsewhere, less what came back since; how many units, a part of one counted as one. By the rate
    /// that is stored, or, where nothing is held, by that of `spec`.
    ///
    /// While the bucket held something, it drained that; only while it was empty could the new units have drained
    /// instead. When it was last empty is known from when it began to hold something (or, if it is empty, from when
    /// it had drained); before that it counts as empty.
    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let (held, uncut) = self.held(now_us);
        let is_empty = held.fine == 0 && uncut.fine == 0;
        let rate = if is_empty {
            spec.token_rate()
        } else {
            held.rate
        };
        let most = rate.max_backlog();
        let drains = |us: u64| us.saturating_mul(rate.per_us);
        let (mut backlog, mut born_us) = (held.fine, self.born_us);
        let mut emptied_us = match self.drains_in_us() {
            0 => 0,
            drains_in_us => self.as_of_us.saturating_add(drains_in_us),
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
            let uncut = if uncut.fine == 0 {
                Backlog::EMPTY
            } else {
                uncut.plus(recorded)
            };
            let fine = backlog;
            self.hold((Backlog { fine, rate }, uncut), now_us);
            self.born_us = born_us;
        }
        recorded
    }

    /// What it holds now, as if it had been taken now.
    pub(super) fn records(&self, _: &BucketSpec, now_us: u64) -> Vec<Record> {
        let Backlog { fine, rate } = self.most().drained(self.passed_us(now_us));
        let record = Record {
            at_us: now_us,
            units: fine.div_ceil(rate.per_unit),
        };
        Vec::from_iter((fine > 0).then_some(record))
    }

    /// How long after `as_of_us` nothing is held any more, by the rates that it is stored by.
    fn drains_in_us(&self) -> u64 {
        let uncut = self.uncut.as_ref();
        let uncut_us = uncut.map_or(0, |uncut| uncut.backlog.empty_in_us());
        self.backlog.empty_in_us().max(uncut_us)
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        let drains_in_us = self.stored(spec).empty_in_us().max(self.drains_in_us());
        self.as_of_us.saturating_add(drains_in_us)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.uncut.as_ref().map_or(0, |_| size_of::<Uncut>())
    }
}
