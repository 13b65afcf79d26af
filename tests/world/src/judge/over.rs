//! Never over: what was admitted in every window, and in every token bucket.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Bucket, CLOCK, Claim, Counted, Judge, MS, Subject, Use, meets, secs};
use crate::script::Algorithm;

/// After a sidecar knows of a step of the clock: until its filters have asked it for something.
const NEXT_ANSWERS: u64 = 400 * MS;

/// How a bucket counts.
trait Counter {
    /// Adds what was taken; what is wrong with it.
    fn add(&mut self, one: &Use, units: u64) -> Option<String>;
}

/// What was taken until a time, without what was returned and forgotten until then.
struct Known<'a> {
    units: Vec<u64>,
    /// In order of time: of which use.
    returns: Vec<(u64, usize, u64)>,
    forgotten: &'a [(u64, u64)],
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
    pub(super) fn over_window(
        &self,
        counted: &Counted,
        subject: &Subject,
        requests: Option<u64>,
    ) -> Option<String> {
        let quota = |span, own: u64| {
            let claims = in_force(&counted.claims, span).map(|claim| claim.quota);
            claims
                .max()
                .unwrap_or(0)
                .max(own.min(requests.unwrap_or(0)))
        };
        if matches!(
            counted.bucket.algorithm,
            Algorithm::Fixed | Algorithm::Day(_)
        ) {
            return self.over(counted, subject, || Aligned {
                judge: self,
                counted,
                quota,
                windows: BTreeMap::new(),
            });
        }
        self.over(counted, subject, || Trailing {
            judge: self,
            counted,
            quota,
            requests: requests.is_some(),
            held: BinaryHeap::new(),
            sum: 0,
        })
    }

    pub(super) fn over_token(
        &self,
        counted: &Counted,
        subject: &Subject,
        requests: Option<u64>,
    ) -> Option<String> {
        self.over(counted, subject, || Level {
            judge: self,
            counted,
            requests,
            level: 0,
            at: 0,
            since: 0,
            before: 0,
            longest_call: 0,
            by_shares: 0,
        })
    }

    fn over<C: Counter>(
        &self,
        counted: &Counted,
        subject: &Subject,
        new: impl Fn() -> C,
    ) -> Option<String> {
        let uses = &counted.uses;
        let mut returns = Vec::new();
        for (number, one) in uses.iter().enumerate() {
            let of = self.returned.get(&one.entry).into_iter().flatten();
            returns.extend(of.map(|(from, units)| (*from, number, *units)));
        }
        returns.sort_unstable_by(|a, b| b.cmp(a));
        let mut known = Known {
            units: uses.iter().map(|one| one.units).collect(),
            returns,
            forgotten: &subject.forgotten,
            since: 0,
        };
        let mut counter = new();
        for (number, one) in uses.iter().enumerate().filter(|(_, one)| one.certain) {
            if known.until(one.to) {
                counter = new();
                for (earlier, units) in uses[..number].iter().zip(&known.units) {
                    if earlier.certain && earlier.from > known.since {
                        counter.add(earlier, *units);
                    }
                }
            }
            if one.from > known.since {
                let over = counter.add(one, known.units[number]);
                if over.is_some() {
                    return over;
                }
            }
        }
        None
    }

    /// What leases may have spent between a step of the clock and the answers that show it.
    fn leased_at_steps(&self, counted: &Counted, span: (u64, u64)) -> u64 {
        if self.longest_lease(counted.bucket.limit) == 0 {
            return 0;
        }
        let steps = self.clocks.iter().zip(self.told);
        let steps = steps.map(|((at, _), told)| (*at, told.saturating_add(NEXT_ANSWERS)));
        let spent = |after: (u64, u64)| {
            let uses = counted.uses.iter();
            let near = uses.filter(|one| meets((one.from, one.to), after));
            near.map(|one| one.units).sum::<u64>()
        };
        let steps = steps.filter(|after| meets(*after, span));
        steps.map(spent).sum()
    }

    /// How often a window is run through again because the clock stepped back over more than one edge, or over one that it had
    /// passed for more than a second.
    fn again_in(&self, bucket: Bucket, span: (u64, u64)) -> u64 {
        let steps = self.clocks.iter().filter(|(at, by)| {
            let was = self.clock(*at).saturating_add_signed(-by);
            let (before, after) = (
                self.window_of(bucket, was),
                self.window_of(bucket, self.clock(*at)),
            );
            let forgotten = after.1 <= before.0 && before.0 + 1_000 * MS <= was;
            *by < 0 && meets((*at, *at), span) && (after.1 < before.0 || forgotten)
        });
        steps.count() as u64
    }
}

fn in_force(claims: &[Claim], span: (u64, u64)) -> impl Iterator<Item = &Claim> {
    claims
        .iter()
        .filter(move |claim| meets((claim.from, claim.to), span))
}

/// Windows with edges: by their begin, what was certainly taken in them, since when, and the largest quota of a request.
struct Aligned<'a, Q> {
    judge: &'a Judge<'a>,
    counted: &'a Counted,
    quota: Q,
    windows: BTreeMap<u64, (u64, u64, u64)>,
}

impl<Q: Fn((u64, u64), u64) -> u64> Counter for Aligned<'_, Q> {
    fn add(&mut self, one: &Use, units: u64) -> Option<String> {
        let (judge, bucket) = (self.judge, self.counted.bucket);
        let of = |at| judge.window_of(bucket, judge.clock(at)).0;
        let window = of(one.to);
        // A share follows the store's clock as it was known.
        let early = if judge.by_share(one) { CLOCK } else { 0 };
        // A step of the clock while a call is under way comes before it or after.
        let mut steps = judge.clocks.iter();
        let stepped = steps.any(|(at, _)| meets((*at, *at), (one.from, one.to)));
        if stepped || of(one.from.saturating_sub(early)) != window {
            return None;
        }
        let held = self.windows.entry(window).or_insert((0, one.from, 0));
        *held = (
            held.0 + units,
            held.1.min(one.from),
            held.2.max(one.quota.unwrap_or(0)),
        );
        let (taken, since, own) = *held;
        let span = (since, one.to);
        let more = judge.again_in(bucket, span) + judge.once_more((one.from, one.to), since);
        let allowed = (self.quota)(span, own).saturating_mul(1 + more);
        (taken > allowed
            && taken > allowed.saturating_add(judge.leased_at_steps(self.counted, span)))
        .then(|| said(bucket, taken, allowed, span))
    }
}

/// Trailing windows: what is held, by when it was taken, and the largest quota of a request.
struct Trailing<'a, Q> {
    judge: &'a Judge<'a>,
    counted: &'a Counted,
    quota: Q,
    /// Requests may have quotas of their own.
    requests: bool,
    held: BinaryHeap<Reverse<(u64, u64, u64, u64)>>,
    sum: u64,
}

impl<Q: Fn((u64, u64), u64) -> u64> Counter for Trailing<'_, Q> {
    fn add(&mut self, one: &Use, units: u64) -> Option<String> {
        let (judge, bucket) = (self.judge, self.counted.bucket);
        let ends = judge.trailing(one.to);
        while let Some(Reverse((from, _, units, _))) = self.held.peek()
            && from + bucket.per_ms * MS <= ends
        {
            self.sum -= units;
            self.held.pop();
        }
        let own = one.quota.unwrap_or(0);
        let early = if judge.by_share(one) { CLOCK } else { 0 };
        let stamp = judge.trailing(one.from).saturating_sub(early);
        self.held.push(Reverse((stamp, one.from, units, own)));
        self.sum += units;
        let since = self.held.peek().map_or(one.from, |Reverse(first)| first.1);
        let span = (since, one.to);
        let more = judge.once_more((one.from, one.to), since);
        let own = || {
            self.held
                .iter()
                .map(|Reverse(one)| one.3)
                .max()
                .unwrap_or(0)
        };
        let allowed = (self.quota)(span, if self.requests { own() } else { 0 });
        let allowed = allowed.saturating_mul(1 + more);
        let over = self.sum > allowed
            && self.sum > allowed.saturating_add(judge.leased_at_steps(self.counted, span));
        over.then(|| said(bucket, self.sum, allowed, span))
    }
}

fn said(bucket: Bucket, units: u64, allowed: u64, span: (u64, u64)) -> String {
    let (from, to) = (secs(span.0), secs(span.1));
    format!("{bucket:?}: {units} of {allowed} in {from:.3} to {to:.3} s")
}

/// A token bucket: what it holds in units times the window's length, and since when it holds something.
struct Level<'a> {
    judge: &'a Judge<'a>,
    counted: &'a Counted,
    requests: Option<u64>,
    level: u128,
    at: u64,
    since: u64,
    before: u64,
    longest_call: u64,
    /// What was taken while shares may have decided.
    by_shares: u64,
}

impl Counter for Level<'_> {
    fn add(&mut self, one: &Use, units: u64) -> Option<String> {
        let (judge, bucket, claims) = (self.judge, self.counted.bucket, &self.counted.claims);
        let per = bucket.per_ms * MS;
        let now = judge.trailing(one.to);
        let (mut quota, mut burst) = (0, 0);
        for claim in in_force(claims, (self.since, one.to)) {
            (quota, burst) = (quota.max(claim.quota), burst.max(claim.burst));
        }
        if let Some(up_to) = self.requests {
            // A request's quota scales the burst.
            let of = claims.iter().map(|claim| {
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
        self.level = self
            .level
            .saturating_sub(u128::from(passed) * u128::from(quota));
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
        self.level += u128::from(units) * u128::from(per);
        let span = (self.since, one.to);
        let times = 1 + judge.once_more((one.from, one.to), span.0);
        self.by_shares += if judge.by_share(one) { units } else { 0 };
        // Of that a smaller policy cuts off what is more than its own burst.
        let first = in_force(claims, span).next();
        let differs = |claim: &Claim| {
            first.is_some_and(|first| (first.quota, first.burst) != (claim.quota, claim.burst))
        };
        let cut_off = if in_force(claims, span).any(differs) {
            self.by_shares
        } else {
            0
        };
        let allowed = u128::from(burst) * u128::from(times) + u128::from(cut_off);
        let allowed = allowed * u128::from(per);
        // What calls took to come back has drained. What drains while units are leased is not given out in the first place.
        let later = self.longest_call;
        let over = self.level > allowed + u128::from(later) * u128::from(quota);
        over.then(|| {
            let (taken, times) = (self.level / u128::from(per), u128::from(times));
            let text = said(bucket, taken as u64, burst * times as u64, span);
            format!("{text}, {quota} of which flow back")
        })
    }
}
