//! Never over: what was admitted in every window, and in every token bucket.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::bounds::{Bucket, CLOCK, Claim, Counted, Judge, MS, Subject, Time, meets};
use crate::record::Algorithm;
use crate::report::{Peak, Report, Wrong};
use crate::uses::Use;

/// After a sidecar knows of a step of the clock: until its filters have asked it for something.
const NEXT_ANSWERS: u64 = 400 * MS;

/// How a bucket counts.
trait Counter {
    /// Adds what was taken; what is certainly in its window then.
    fn add(&mut self, one: &Use, units: u64) -> Option<Filled>;
}

/// What was certainly admitted in one window, of what is allowed.
struct Filled {
    units: u64,
    allowed: u64,
    span: Time,
}

/// What was taken until a time, without what was returned and forgotten until then.
struct Known<'a> {
    units: Vec<u64>,
    /// In order of time: of which use.
    returns: Vec<(u64, usize, u64)>,
    forgotten: &'a [Time],
    /// Of what happened at this very time nobody knows whether it came before.
    since: u64,
}

impl Known<'_> {
    /// Until then; whether something earlier is not what it was.
    fn until(&mut self, at: u64) -> bool {
        let mut changed = false;
        while let Some((from, number, units)) = self.returns.last()
            && *from <= at
        {
            self.units[*number] = self.units[*number].saturating_sub(*units);
            self.returns.pop();
            changed = true;
        }
        while let [(from, to), later @ ..] = self.forgotten
            && *from <= at
        {
            self.since = self.since.max(*to);
            self.forgotten = later;
            changed = true;
        }
        changed
    }
}

impl Judge<'_> {
    pub(crate) fn over(&self, counted: &Counted, subject: &Subject, report: &mut Report) {
        let (uses, bucket) = (&counted.uses.each, counted.bucket);
        let limits = self.limits(bucket.limit).map(|(_, of)| of);
        let requests = limits.filter_map(|of| of.requests_up_to).max();
        let counting = Counting {
            judge: self,
            counted,
            requests,
        };
        let mut returns = Vec::new();
        for (number, one) in uses.iter().enumerate() {
            let of = self.returned_of(one, bucket);
            returns.extend(of.map(|(from, units)| (*from, number, *units)));
        }
        returns.sort_unstable_by(|a, b| b.cmp(a));
        let mut known = Known {
            units: uses.iter().map(|one| one.least).collect(),
            returns,
            forgotten: &subject.forgotten,
            since: 0,
        };
        let mut counter = counting.counter();
        let mut peak = 0;
        for (number, one) in uses.iter().enumerate().filter(|(_, one)| one.certain) {
            if known.until(one.to) {
                counter = counting.counter();
                for (earlier, units) in uses[..number].iter().zip(&known.units) {
                    if earlier.certain && earlier.from > known.since {
                        counter.add(earlier, *units);
                    }
                }
            }
            if one.from <= known.since {
                continue;
            }
            let Some(filled) = counter.add(one, known.units[number]) else {
                continue;
            };
            if one.charged {
                continue;
            }
            peak = peak.max(filled.units);
            let (mut units, mut allowed) = (filled.units, filled.allowed);
            // Who reserves nothing is denied when nothing is left.
            units += u64::from(one.units == 0);
            if units > allowed {
                allowed = allowed.saturating_add(self.charged_beside(uses, number, filled.span));
            }
            if units > allowed {
                allowed = allowed.saturating_add(self.leased_at_steps(counted, filled.span));
            }
            if units > allowed {
                allowed = allowed.saturating_add(self.returned_of_others(counted, filled.span));
            }
            if units > allowed {
                let what = Wrong::Over { units, allowed };
                report.add((bucket.limit, bucket.key), filled.span, what);
                break;
            }
        }
        report.peaks.push(Peak {
            limit: bucket.limit,
            units: peak,
            quota: counted.claims.first().map_or(0, |claim| claim.quota),
        });
    }

    /// What leases may have spent between a step of the clock and the answers that show it.
    fn leased_at_steps(&self, counted: &Counted, span: Time) -> u64 {
        if self.longest_lease(counted.bucket.limit) == 0 {
            return 0;
        }
        // A token bucket has no edges: it fills up with a step forward.
        let is_level = matches!(counted.bucket.algorithm, Algorithm::Token(_));
        let steps = self.clocks.iter().zip(&self.history.told);
        let steps = steps.filter(|((_, by), _)| *by > 0 || !is_level);
        let steps = steps.map(|((at, _), told)| (*at, told.saturating_add(NEXT_ANSWERS)));
        let steps: Vec<_> = steps.filter(|after| meets(*after, span)).collect();
        let near = |one: &&Use| steps.iter().any(|after| meets((one.from, one.to), *after));
        let uses = counted.uses.each.iter().filter(near);
        uses.map(|one| one.units).sum()
    }

    /// What receipts from before a step back may have returned of the units of others.
    fn returned_of_others(&self, counted: &Counted, span: Time) -> u64 {
        let stepped = |since: u64, at: u64| {
            let mut steps = self.clocks.iter();
            steps.any(|(step, by)| *by < 0 && (since..=at).contains(step))
        };
        let returns = counted.uses.each.iter().flat_map(|one| {
            let of = self.returned_of(one, counted.bucket);
            of.filter(move |(at, _)| meets((*at, *at), span) && stepped(one.from, *at))
        });
        returns.map(|(_, units)| *units).sum()
    }

    /// How often a window is run through again because the clock stepped back over more than one edge, or over one that it had
    /// passed for more than a second.
    fn again_in(&self, bucket: Bucket, span: Time) -> u64 {
        let steps = self.clocks.iter().filter(|(at, by)| {
            let now = self.clock(*at);
            let was = now.saturating_add_signed(-by);
            let (before, after) = (self.window_of(bucket, was), self.window_of(bucket, now));
            let forgotten = after.1 <= before.0 && before.0 + 1_000 * MS <= was;
            *by < 0 && meets((*at, *at), span) && (after.1 < before.0 || forgotten)
        });
        steps.count() as u64
    }
}

/// What a counter counts, and by what.
#[derive(Clone, Copy)]
struct Counting<'a> {
    judge: &'a Judge<'a>,
    counted: &'a Counted,
    /// The largest quota that requests may have of their own.
    requests: Option<u64>,
}

impl<'a> Counting<'a> {
    fn counter(self) -> Box<dyn Counter + 'a> {
        match self.counted.bucket.algorithm {
            Algorithm::Fixed | Algorithm::Day(_) => Box::new(Aligned {
                of: self,
                windows: BTreeMap::new(),
            }),
            Algorithm::Log | Algorithm::Sliding(_) | Algorithm::Slots(_) => Box::new(Trailing {
                of: self,
                held: BinaryHeap::new(),
                sum: 0,
            }),
            Algorithm::Token(_) => Box::new(Level {
                of: self,
                level: 0,
                at: 0,
                since: 0,
                before: 0,
                longest_call: 0,
                by_shares: 0,
            }),
        }
    }

    /// How much may be in a window that has held something since `span.0`; `own` is the largest quota of a request in it.
    fn allowed(self, now: Time, span: Time, own: u64, more: u64) -> u64 {
        let quota = self.counted.in_force(span).map(|claim| claim.quota).max();
        let quota = quota.unwrap_or(0).max(own.min(self.requests.unwrap_or(0)));
        let disturbed = self.judge.disturbing(span, |one| one.once_more) as u64;
        quota.saturating_mul(1 + more + self.judge.once_more(now, span.0) + disturbed)
    }
}

/// A share follows the store's clock as it was known.
fn earliest(one: &Use, at: u64) -> u64 {
    at.saturating_sub(if one.by_share { CLOCK } else { 0 })
}

/// Windows with edges: by their begin, what was certainly taken in them, since when, and the largest quota of a request.
struct Aligned<'a> {
    of: Counting<'a>,
    windows: BTreeMap<u64, (u64, u64, u64)>,
}

impl Counter for Aligned<'_> {
    fn add(&mut self, one: &Use, units: u64) -> Option<Filled> {
        let (judge, bucket) = (self.of.judge, self.of.counted.bucket);
        let of = |at| judge.window_of(bucket, judge.clock(at)).0;
        let (window, now) = (of(one.to), (one.from, one.to));
        // A step of the clock while a call is under way comes before it or after.
        let mut steps = judge.clocks.iter();
        if steps.any(|(at, _)| meets((*at, *at), now)) || of(earliest(one, one.from)) != window {
            return None;
        }
        let held = self.windows.entry(window).or_insert((0, one.from, 0));
        let own = held.2.max(one.quota.unwrap_or(0));
        *held = (held.0 + units, held.1.min(one.from), own);
        let (units, span) = (held.0, (held.1, one.to));
        let more = judge.again_in(bucket, span);
        // Of what was admitted before the step shares may have decided some, too.
        let when = if more > 0 { span } else { now };
        let allowed = self.of.allowed(when, span, own, more);
        Some(Filled {
            units,
            allowed,
            span,
        })
    }
}

/// Trailing windows: what is held, by when it was taken, and the largest quota of a request.
struct Trailing<'a> {
    of: Counting<'a>,
    held: BinaryHeap<Reverse<(u64, u64, u64, u64)>>,
    sum: u64,
}

impl Counter for Trailing<'_> {
    fn add(&mut self, one: &Use, units: u64) -> Option<Filled> {
        let judge = self.of.judge;
        let stamp = earliest(one, judge.trailing(one.from));
        let own = one.quota.unwrap_or(0);
        // The earliest stamp is not the earliest use: others may have come since that of a share.
        let since = earliest(one, one.from);
        self.held.push(Reverse((stamp, since, units, own)));
        self.sum += units;
        // What ends at this instant has ended: the window is open at its beginning.
        let ends = judge.trailing(one.to);
        while let Some(Reverse((from, _, units, _))) = self.held.peek()
            && from + self.of.counted.bucket.per_us <= ends
        {
            self.sum -= units;
            self.held.pop();
        }
        let since = self.held.peek().map_or(one.from, |Reverse(first)| first.1);
        let span = (since, one.to);
        let largest = || {
            self.held
                .iter()
                .map(|Reverse(one)| one.3)
                .max()
                .unwrap_or(0)
        };
        let own = self.of.requests.map_or(0, |_| largest());
        Some(Filled {
            units: self.sum,
            allowed: self.of.allowed((one.from, one.to), span, own, 0),
            span,
        })
    }
}

/// A token bucket: what it holds in units times the window's length, and since when it holds something.
struct Level<'a> {
    of: Counting<'a>,
    level: u128,
    at: u64,
    since: u64,
    before: u64,
    longest_call: u64,
    /// What was taken while shares may have decided, or charged.
    by_shares: u64,
}

impl Counter for Level<'_> {
    fn add(&mut self, one: &Use, units: u64) -> Option<Filled> {
        let (judge, counted) = (self.of.judge, self.of.counted);
        let per = u128::from(counted.bucket.per_us);
        let now = judge.trailing(one.to);
        let (mut quota, mut burst) = (0, 0);
        for claim in counted.in_force((self.since, one.to)) {
            (quota, burst) = (quota.max(claim.quota), burst.max(claim.burst));
        }
        if let Some(up_to) = self.of.requests {
            // A request's quota scales the burst.
            let of = counted.claims.iter();
            let of = of.map(|claim| {
                let scaled = claim.burst.saturating_mul(up_to.max(claim.quota));
                scaled.div_ceil(claim.quota.max(1))
            });
            (quota, burst) = (quota.max(up_to), burst.max(of.max().unwrap_or(0)));
        }
        if quota == u64::MAX {
            (self.level, self.at, self.since) = (0, now, one.to);
            return None;
        }
        // While shares decide, what flows back does so in the store as well.
        let outages = judge.outages.iter();
        let twice =
            outages.map(|(from, to)| (*to).min(one.to).saturating_sub((*from).max(self.before)));
        let twice: u64 = twice.sum();
        self.before = one.to;
        // A step while calls are under way comes before them or after.
        let under_way = (one.from.saturating_sub(self.longest_call), one.to);
        let steps = judge.clocks.iter();
        let steps = steps.filter(|(at, by)| *by > 0 && meets((*at, *at), under_way));
        let passed = now - self.at + twice + steps.map(|(_, by)| by.unsigned_abs()).sum::<u64>();
        let drained = u128::from(passed) * u128::from(quota);
        self.level = self.level.saturating_sub(drained);
        if self.level == 0 {
            (self.since, self.longest_call, self.by_shares) = (one.from, 0, 0);
        }
        // It may have been taken before a step that came before its answer.
        let early = judge.trailing(one.from);
        self.at = if now - early > one.to - one.from {
            early.max(self.at)
        } else {
            now
        };
        self.longest_call = self.longest_call.max(one.to - one.from);
        self.level += u128::from(units) * per;
        let span = (self.since, one.to);
        let times = 1 + judge.once_more((one.from, one.to), span.0);
        self.by_shares += if one.by_share || one.charged {
            units
        } else {
            0
        };
        // Of that a smaller policy cuts off what is more than its own burst.
        let mut in_force = counted.in_force(span);
        let first = in_force.next();
        let differs = |claim: &Claim| {
            first.is_some_and(|first| (first.quota, first.burst) != (claim.quota, claim.burst))
        };
        let cut_off = if in_force.any(differs) {
            self.by_shares
        } else {
            0
        };
        // What calls took to come back has drained. What drains while units are leased is not given out in the first place.
        let drained = u128::from(self.longest_call) * u128::from(quota);
        let held = self.level.saturating_sub(drained).div_ceil(per);
        Some(Filled {
            units: u64::try_from(held).unwrap_or(u64::MAX),
            allowed: burst.saturating_mul(times).saturating_add(cut_off),
            span,
        })
    }
}
