//! Never wrongly denied: denials of which it is certain that there was room.

use super::{CLOCK, Claim, Counted, Judge, MS, SOON, Subject, Use, Wrong, meets, secs};
use crate::filter::Said;
use crate::run::What;
use crate::script::{Algorithm, Check};

/// How fast the average forgets that decides how large leases are.
const MEMORY_US: f64 = 250_000.0;

/// After a sidecar has ended: until its share is divided among the others, if an outage does not keep it.
const GONE: u64 = 60_000 * MS;

/// A denial: when it was asked and answered, for what cost, and since when what was taken counts.
struct Denial {
    from: u64,
    to: u64,
    cost: u64,
    since: u64,
    /// A share may have decided.
    share: bool,
}

/// A bucket's uses in order of their end, with how much had been taken before each.
struct Sums<'a> {
    judge: &'a Judge<'a>,
    counted: &'a Counted,
    before: Vec<u64>,
    /// If the limit has leases: when something was asked, and all that was until then, weighted by its age.
    demand: Vec<(u64, f64)>,
    /// Leases that are lost come back with their window only. Those of token buckets are not told from what drains.
    loses_leases: bool,
}

impl Judge<'_> {
    /// Denials of a key of which it is certain that there was room.
    pub(super) fn denials(&self, subject: &Subject, wrong: &mut Vec<Wrong>) {
        let Some((_, Check { limit, key, .. })) = subject.asked.first().copied() else {
            return;
        };
        let versions = self.limits(limit).count();
        let simple = versions == self.world.policies.len()
            && self
                .limits(limit)
                .all(|(_, of)| of.blocked != Some(key) && of.requests_up_to.is_none());
        if !simple || !self.overrides(limit, key).is_empty() {
            return;
        }
        let sums: Vec<_> = subject
            .counted
            .iter()
            .map(|counted| Sums::new(self, counted, subject))
            .collect();
        for (number, check) in &subject.asked {
            let entry = &self.log[*number];
            let What::Asked {
                checks,
                said: Said::Denied { .. },
                ..
            } = &entry.what
            else {
                continue;
            };
            if checks.len() > 1 {
                continue;
            }
            // What was taken before a reset counts no longer, in the sidecar that was told, and in the windows of its policy.
            let resets = self.changes.iter().filter(|one| {
                let version = |at| self.version(entry.sidecar, at);
                let told = one.sidecar == entry.sidecar
                    && entry.from > one.to + SOON
                    && version(one.from) == version(entry.from);
                told && !self.cut((one.from, one.to))
                    && matches!(one.what, What::Reset { limit: of, key: whose, done: true } if (of, whose) == (limit, key))
            });
            let denial = Denial {
                from: entry.from,
                to: entry.to,
                cost: check.cost,
                since: resets.map(|one| one.from).max().unwrap_or(0),
                share: self.cut((entry.from, entry.to)),
            };
            if !sums.iter().any(|sums| sums.may_be_full(&denial)) {
                let what = format!(
                    "l{limit} k{key} cost {} is denied at {:.3} s (answered {:.3}) with room in every window",
                    check.cost,
                    secs(entry.from),
                    secs(entry.to)
                );
                wrong.push(Wrong {
                    kind: "wrongly denied",
                    what,
                });
                return;
            }
        }
    }
}

impl<'a> Sums<'a> {
    fn new(judge: &'a Judge<'a>, counted: &'a Counted, subject: &Subject) -> Self {
        let mut before = vec![0];
        for one in &counted.uses {
            before.push(before[before.len() - 1] + one.units);
        }
        let leases = judge.longest_lease(counted.bucket.limit) > 0;
        let mut changes = judge.changes.iter();
        let lost = changes.any(|one| {
            matches!(
                one.what,
                What::Down | What::Envoy | What::Lost | What::Reset { .. }
            )
        });
        let lost = lost || !judge.outages.is_empty() || !judge.clocks.is_empty();
        let loses_leases =
            leases && (lost || matches!(counted.bucket.algorithm, Algorithm::Token(_)));
        let mut demand: Vec<(u64, f64)> = Vec::new();
        if leases {
            let asked = subject.asked.iter();
            let mut asked: Vec<_> = asked
                .map(|(number, check)| (judge.log[*number].from, check.cost))
                .collect();
            asked.sort_unstable();
            for (at, cost) in asked {
                let (last, weight) = demand.last().copied().unwrap_or((at, 0.0));
                demand.push((
                    at,
                    weight * (-((at - last) as f64) / MEMORY_US).exp() + cost as f64,
                ));
            }
        }
        Self {
            judge,
            counted,
            before,
            demand,
            loses_leases,
        }
    }

    /// What may lie idle in leases at a denial, as `docs/leases.md` has it: 2 x D x L, by the most that was asked for lately.
    fn idle(&self, denial: &Denial) -> u64 {
        let longest = self.judge.longest_lease(self.counted.bucket.limit);
        let first = self
            .demand
            .partition_point(|one| one.0 + longest + SOON < denial.from);
        let recent = self.demand[first.saturating_sub(1)..]
            .iter()
            .take_while(|one| one.0 <= denial.to);
        let most = recent.map(|one| one.1).fold(0.0, f64::max);
        (2.0 * most / MEMORY_US * longest as f64) as u64
    }

    /// Uses that may be held at a denial: that end from then on, and begin before its end.
    fn taken(&self, from: u64, to: u64, counts: impl Fn(&Use) -> bool) -> u64 {
        let uses = &self.counted.uses;
        let first = uses.partition_point(|one| one.to < from);
        let rest = uses[first..].iter().take_while(|one| one.to <= to + SOON);
        rest.filter(|one| one.from <= to && counts(one))
            .map(|one| one.units)
            .sum()
    }

    /// The same of all.
    fn all_taken(&self, from: u64, to: u64) -> u64 {
        let uses = &self.counted.uses;
        let first = uses.partition_point(|one| one.to < from);
        let last = uses.partition_point(|one| one.to <= to).max(first);
        let under_way = uses[last..].iter().take_while(|one| one.to <= to + SOON);
        let under_way = under_way.filter(|one| one.from <= to).map(|one| one.units);
        self.before[last] - self.before[first] + under_way.sum::<u64>()
    }

    fn may_be_full(&self, denial: &Denial) -> bool {
        let (judge, bucket) = (self.judge, self.counted.bucket);
        let per = bucket.per_ms * MS;
        let precision = match bucket.algorithm {
            Algorithm::Sliding(precision) => precision * MS,
            _ => 0,
        };
        let held = per + per / 60 + 1 + precision;
        let from = denial.from.saturating_sub(2 * held);
        let claims = &self.counted.claims;
        let in_force: Vec<&Claim> = claims
            .iter()
            .filter(|claim| meets((claim.from, claim.to), (from, denial.to)))
            .collect();
        // After a step back a key is held from its first request on, whenever that is; one forward is known with the next answer.
        let soon = (denial.from.saturating_sub(SOON), denial.to);
        let steps = &judge.clocks;
        let stepped = denial.share && !steps.is_empty()
            || steps
                .iter()
                .any(|(at, by)| *by < 0 && *at <= denial.to || meets((*at, *at), soon));
        if in_force.is_empty() || stepped {
            return true;
        }
        if self.loses_leases {
            return true;
        }
        let denial_cost = denial.cost + self.idle(denial);
        let least = if denial.share {
            // One that has ended is counted for a while, beside its successor.
            let ended = judge.changes.iter().filter(|one| {
                matches!(one.what, What::Down)
                    && meets((one.from, one.to + GONE), (from, denial.to))
            });
            (judge.world.sidecars + ended.count()) as u64
        } else {
            1
        };
        let quota = in_force.iter().map(|claim| claim.quota).min().unwrap_or(0) / least;
        match bucket.algorithm {
            Algorithm::Token(_) => {
                let changes = claims
                    .iter()
                    .any(|claim| claim.from > 0 || claim.to < u64::MAX);
                let burst = in_force.iter().map(|claim| claim.burst).min().unwrap_or(0);
                let known = changes || !steps.is_empty() || !judge.outages.is_empty() || quota == 0;
                known || self.level(denial, quota) + denial.cost * per > burst * per
            }
            Algorithm::Fixed | Algorithm::Day(_) => {
                let window = judge.window_of(bucket, judge.clock(denial.from));
                let of = |at: u64| judge.window_of(bucket, judge.clock(at));
                if window != of(denial.from.saturating_sub(CLOCK)) || window != of(denial.to) {
                    return true;
                }
                // A cached denial of the window before ends with it.
                let begins = denial
                    .from
                    .saturating_sub(judge.clock(denial.from) - window.0);
                let begins = if steps.is_empty() { begins } else { 0 };
                let inside = |one: &Use| of(one.from) == window || of(one.to) == window;
                let units = self.taken(denial.since.max(begins), denial.to, inside);
                units + denial_cost > quota
            }
            _ => {
                let horizon = denial.from.saturating_sub(held + 1);
                let units = self.all_taken(denial.since.max(horizon), denial.to);
                units + denial_cost > quota
            }
        }
    }

    /// What a token bucket holds at most, in units times its window.
    fn level(&self, denial: &Denial, quota: u64) -> u64 {
        let per = self.counted.bucket.per_ms * MS;
        let (mut level, mut at) = (0_u64, 0_u64);
        let uses = self.counted.uses.iter();
        for one in uses.filter(|one| one.to >= denial.since && one.from <= denial.to) {
            let ends = one.to.min(denial.from);
            level = level.saturating_sub(ends.saturating_sub(at) * quota) + one.units * per;
            at = at.max(ends);
        }
        let now = denial.from.saturating_sub(SOON).max(at);
        level.saturating_sub((now - at) * quota)
    }
}
