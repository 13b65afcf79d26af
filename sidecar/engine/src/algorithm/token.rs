//! `token_bucket`: GCRA, kept as the backlog that has yet to drain, in integers (see [`TokenRate`]).

use std::fmt::Write;

use super::records::{Back, Record, in_order};
use super::returns::Returns;
use super::{Algorithm, BucketSpec, Rules, Stored, TokenRate, span};
use crate::check::{SpecError, refuse, units};
use crate::verdict::Look;

impl Algorithm {
    /// The capacity of a token bucket.
    pub const fn burst_mut(&mut self) -> Option<&mut u64> {
        let Self::TokenBucket { burst } = self else {
            return None;
        };
        Some(burst)
    }
}

/// A backlog in fine units of the rate by which it drains.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    fine: u64,
    rate: TokenRate,
}

#[derive(Debug, Default)]
pub(crate) struct Token {
    /// What had not drained at `as_of_us`, by the rate of the last decision that took something.
    backlog: Backlog,
    /// The burst of that decision, which a charge may exceed: a debt.
    burst: u64,
    /// The same without cuts, where that is more: every taking, drained by the fastest rate that has taken since.
    uncut: Option<Box<Backlog>>,
    /// What receipts may return, unless a change of the policy has cut the backlog.
    returns: Returns,
    as_of_us: u64,
    /// When the backlog was last empty; nothing taken earlier can be given back.
    born_us: u64,
}

impl Backlog {
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

    /// Fine units to return: what has drained since, by this rate or by the one that they were taken by, was as if returned
    /// already.
    fn undrained(self, back: Back, passed_us: u64) -> u64 {
        let fine = |units: u64, rate: TokenRate| units.saturating_mul(rate.per_unit);
        let drained = |rate: TokenRate| passed_us.saturating_mul(rate.per_us);
        let at_first = Self {
            fine: drained(back.rate).min(fine(back.left, back.rate)),
            rate: back.rate,
        };
        let drained = drained(self.rate).max(at_first.counted_by(self.rate).fine);
        let undrained = fine(back.left, self.rate).saturating_sub(drained);
        fine(back.units, self.rate).min(undrained).min(self.fine)
    }
}

pub(super) static RULES: Rules = Rules {
    name: |_| "token_bucket",
    // From layout 2 on, the state says by which rate it is counted; from 3 on, what receipts may return; from 4 on,
    // the burst always.
    tag: |spec, key| write!(key, "tok4:{}", span(spec.window_us)),
    operands: |spec, _| {
        let rate = spec.token_rate();
        (3, [rate.per_us, rate.per_unit], None)
    },
    empty: |_| Stored::Token(Token::default()),
    check_own,
    most_at_once: |spec| {
        let mut algorithm = spec.algorithm;
        algorithm.burst_mut().map_or(spec.quota, |burst| *burst)
    },
    held_for_us: |spec, units| {
        let rate = spec.token_rate();
        let fine = units.saturating_mul(rate.per_unit);
        fine.div_ceil(rate.per_us.max(1))
    },
    window_at: |_, _| None,
    has_slots: |_| false,
    part: |_, _, _| None,
    touches: |_, _| None,
    leased,
    // The burst is smaller by what drains in the longest time of a lease.
    spend_by_us: |_, _| Some(u64::MAX),
};

fn check_own(spec: &BucketSpec) -> Result<(), SpecError> {
    let burst = spec.most_at_once();
    units("burst", burst)?;
    let most = TokenRate::MAX_BACKLOG / spec.token_rate().per_unit;
    if burst > most {
        let remedy = format!(
            "this rate can be counted exactly with a `burst` of at most {most}: use that, or a rounder rate"
        );
        return refuse("burst", burst, remedy);
    }
    Ok(())
}

/// Units that are spent up to `longest_us` after they were taken find a bucket that has drained meanwhile; so what drains in
/// that time is not given out in the first place.
fn leased(spec: &BucketSpec, longest_us: u64) -> Result<Algorithm, String> {
    let burst = spec.most_at_once();
    let drained = u128::from(longest_us) * u128::from(spec.quota);
    let drained = drained.div_ceil(u128::from(spec.window_us).max(1));
    match u64::try_from(drained).map_or(0, |drained| burst.saturating_sub(drained)) {
        0 => Err(format!(
            "a burst of {burst} has no room for a lease: as much drains in `longest`: shorten it, or remove `lease`"
        )),
        burst => Ok(Algorithm::TokenBucket { burst }),
    }
}

impl Token {
    const fn passed_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.as_of_us)
    }

    /// The larger of what is stored with and without cuts.
    fn most(&self) -> Backlog {
        let uncut = self.uncut.as_deref().copied();
        let uncut = uncut.filter(|uncut| uncut.is_more_than(self.backlog));
        uncut.unwrap_or(self.backlog)
    }

    /// As a decision by `spec` finds it stored. What another rate or a larger burst has let in must not take hours to drain:
    /// a full bucket and its debt at most, rounded up; policies that differ find what was not cut. It is cut as of when it
    /// was stored: looks do not store it anew, and have to see it drain.
    fn stored(&self, spec: &BucketSpec) -> Backlog {
        let (rate, burst) = (spec.token_rate(), spec.most_at_once());
        let uncut = self.uncut.as_deref().copied();
        let most = if rate == self.backlog.rate && (uncut.is_none() || burst <= self.burst) {
            self.backlog
        } else if let Some(uncut) = uncut.filter(|uncut| uncut.rate == rate) {
            return uncut;
        } else {
            self.most().counted_by(rate)
        };
        let full = self.burst.saturating_mul(self.backlog.rate.per_unit);
        let debt = Backlog {
            fine: self.backlog.fine.saturating_sub(full),
            ..self.backlog
        };
        let full = burst * rate.per_unit + debt.counted_by(rate).fine;
        Backlog {
            fine: most.fine.min(full),
            rate,
        }
    }

    fn backlog(&self, spec: &BucketSpec, now_us: u64) -> Backlog {
        self.stored(spec).drained(self.passed_us(now_us))
    }

    /// What is held by the rates that it is stored by: whoever settles has no say in the policy.
    fn held(&self, now_us: u64) -> (Backlog, Backlog) {
        let passed_us = self.passed_us(now_us);
        let uncut = self.uncut.as_ref();
        let uncut = uncut.map_or(Backlog::default(), |uncut| uncut.drained(passed_us));
        (self.backlog.drained(passed_us), uncut)
    }

    /// Stores what is held, by the rates that it is stored by.
    fn hold(&mut self, (backlog, uncut): (Backlog, Backlog), now_us: u64) {
        (self.backlog, self.as_of_us) = (backlog, now_us);
        if uncut.is_more_than(backlog) {
            if let Some(stored) = &mut self.uncut {
                **stored = uncut;
            }
        } else {
            self.uncut = None;
        }
    }

    /// How long after `as_of_us` nothing is held any more, by the rates that it is stored by.
    fn drains_in_us(&self) -> u64 {
        let uncut = self.uncut.as_ref();
        let uncut_us = uncut.map_or(0, |uncut| uncut.empty_in_us());
        self.backlog.empty_in_us().max(uncut_us)
    }

    /// If the clock stepped back, the backlog drains from the new now on, not from the old one. What was taken before the
    /// step cannot be told by its time from what is taken until the clock is there again.
    pub fn heal(&mut self, _: &BucketSpec, now_us: u64) -> bool {
        let is_later = self.as_of_us > now_us;
        if is_later {
            (self.as_of_us, self.born_us) = (now_us, self.as_of_us + 1);
        }
        is_later
    }

    pub fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let Backlog { fine, rate } = self.backlog(spec, now_us);
        let full = spec.most_at_once() * rate.per_unit;
        let excess = if cost == 0 {
            0
        } else {
            (fine + cost * rate.per_unit).saturating_sub(full)
        };
        Look {
            retry_us: excess.div_ceil(rate.per_us),
            remaining: (full.cast_signed() - fine.cast_signed())
                .div_euclid(rate.per_unit.cast_signed()),
            reset_us: fine.div_ceil(rate.per_us),
            quota: spec.most_at_once(),
        }
    }

    pub fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let (rate, backlog, most) = (spec.token_rate(), self.backlog(spec, now_us), self.most());
        let fastest = if rate.is_faster_than(most.rate) {
            rate
        } else {
            most.rate
        };
        let most = most.counted_by(fastest).drained(self.passed_us(now_us));
        self.burst = spec.most_at_once();
        if backlog.fine == 0 {
            self.born_us = now_us;
        }
        self.returns.cap(backlog.fine);
        self.uncut = most
            .is_more_than(backlog)
            .then(|| Box::new(most.plus(cost)));
        if rate != self.backlog.rate || self.uncut.is_some() {
            self.returns = Returns::default();
        }
        (self.backlog, self.as_of_us) = (backlog.plus(cost), now_us);
    }

    /// What is charged later counts by the rate of `spec`, which has admitted a request that takes nothing.
    pub fn adopt(&mut self, spec: &BucketSpec, now_us: u64) {
        let (held, uncut) = self.held(now_us);
        if spec.token_rate() != held.rate && held.fine + uncut.fine > 0 {
            self.take(spec, now_us, 0);
        }
    }

    /// A rate that is faster than those it is stored by drains from its first look on: nothing says when it was raised, and
    /// what drains by it before would forgive debts.
    pub fn adopt_faster(&mut self, spec: &BucketSpec, now_us: u64) {
        let (held, uncut) = self.held(now_us);
        let is_faster = spec.token_rate().is_faster_than(self.most().rate);
        if is_faster && held.fine + uncut.fine > 0 {
            self.hold((held, uncut), now_us);
            self.take(spec, now_us, 0);
        }
    }

    pub fn leave(&mut self, now_us: u64, units: u64) {
        if self.uncut.is_none() {
            let fine = units.saturating_mul(self.backlog.rate.per_unit);
            self.returns.push(now_us, self.backlog.fine, fine);
        }
    }

    /// Returns how many units; a part of one is reported as one.
    pub fn restore(&mut self, _: &BucketSpec, now_us: u64, back: Back) -> u64 {
        if back.at_us < self.born_us || back.at_us > now_us {
            return 0;
        }
        let (mut backlog, mut uncut) = self.held(now_us);
        // Nothing is written, so that a clock that steps back finds all as it was.
        if backlog.fine == 0 && uncut.fine == 0 {
            return 0;
        }
        self.returns.cap(backlog.fine);
        let undrained = backlog.undrained(back, now_us - back.at_us);
        let fine = |units: u64| units.saturating_mul(backlog.rate.per_unit);
        let (units, settled) = (fine(back.units), fine(back.settled));
        let given = self.returns.give(back.at_us, units, settled, undrained);
        let returned = given.unwrap_or(undrained);
        let of_uncut = uncut.undrained(back, now_us - back.at_us);
        if returned + of_uncut > 0 || given.is_some() {
            backlog.fine -= returned;
            self.returns.cap(backlog.fine);
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
    pub fn record(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let (held, uncut) = self.held(now_us);
        let is_empty = held.fine == 0 && uncut.fine == 0;
        let (rate, burst) = if is_empty {
            (spec.token_rate(), spec.most_at_once())
        } else {
            (held.rate, self.burst)
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
            self.returns.cap(held.fine);
            let uncut = if uncut.fine == 0 {
                Backlog::default()
            } else {
                uncut.plus(recorded)
            };
            let fine = backlog;
            self.hold((Backlog { fine, rate }, uncut), now_us);
            (self.born_us, self.burst) = (born_us, burst);
        }
        recorded
    }

    /// What it holds now, as if it had been taken now.
    pub fn records(&self, _: &BucketSpec, now_us: u64) -> Vec<Record> {
        let Backlog { fine, rate } = self.most().drained(self.passed_us(now_us));
        let record = Record {
            at_us: now_us,
            units: fine.div_ceil(rate.per_unit),
        };
        Vec::from_iter((fine > 0).then_some(record))
    }

    pub fn ends_us(&self, spec: &BucketSpec) -> u64 {
        let drains_in_us = self.stored(spec).empty_in_us().max(self.drains_in_us());
        self.as_of_us.saturating_add(drains_in_us)
    }

    pub fn heap_bytes(&self) -> usize {
        let uncut = self.uncut.as_ref().map_or(0, |_| size_of::<Backlog>());
        uncut.saturating_add(self.returns.heap_bytes())
    }

    pub const fn growth(&self, _: &BucketSpec, _: u64) -> usize {
        0
    }
}
