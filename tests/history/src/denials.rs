//! The second and third promise: a denial is needed, and takes nothing. What is reported was denied although it is certain that
//! there was room.

use std::collections::BTreeMap;

use crate::bounds::{CLOCK, Counted, Judge, MS, SOON, Subject, Time, meets};
use crate::record::{Algorithm, By, Check, Entry, Request, What};
use crate::report::{Report, Wrong};

/// How fast the averages forget that decide how large leases are: of keys that are asked for often, and of others.
const MEMORIES_US: [f64; 2] = [250_000.0, 2_000_000.0];

/// After a sidecar has ended: until its share is divided among the others, if an outage does not keep it.
const GONE: u64 = 60_000 * MS;

/// A denial: when it was asked and answered, and since when what was taken counts.
struct Denial {
    from: u64,
    to: u64,
    since: u64,
    /// A share may have decided.
    share: bool,
}

/// When something was asked for a limit with leases, and all that was until then, weighted by its age in each average.
type Demand = Vec<(u64, [f64; 2])>;

impl Judge<'_> {
    /// Denials of keys of which it is certain that there was room.
    pub(crate) fn denials(&self, report: &mut Report) {
        let demands = self.subjects.iter();
        let demands = demands.map(|(of, subject)| (*of, self.demand(of.0, subject)));
        let demands: BTreeMap<_, _> = demands.collect();
        for entry in &self.history.log {
            let Some(request) = entry.request().filter(|request| request.is_denied()) else {
                continue;
            };
            let checks = &request.checks;
            let subject = |check: &Check| &self.subjects[&(check.limit, check.key)];
            if self.disturbing(entry.when(), |one| one.denials) > 0
                || !checks.iter().all(|check| subject(check).simple)
            {
                continue;
            }
            report.denials += 1;
            let full = |idle: bool, denials_take: bool| {
                checks.iter().any(|check| {
                    let demand = &demands[&(check.limit, check.key)];
                    let demand = idle.then_some(demand);
                    self.may_be_full(entry, check, subject(check), demand, denials_take)
                })
            };
            if full(false, false) {
                continue;
            }
            if full(true, false) {
                report.idle += 1;
                continue;
            }
            let what = if full(true, true) {
                Wrong::DenialsTook
            } else {
                Wrong::WronglyDenied
            };
            report.add(request.first(), entry.when(), what);
        }
    }

    /// With `demand`, what may lie idle in leases counts as taken.
    fn may_be_full(
        &self,
        entry: &Entry,
        check: &Check,
        subject: &Subject,
        demand: Option<&Demand>,
        denials_take: bool,
    ) -> bool {
        let denial = Denial {
            from: entry.from,
            to: entry.to,
            since: self.reset_before(entry, check),
            share: self.cut((entry.from, entry.to)),
        };
        let (_, alone) = subject.needs(entry.when(), check);
        let idle = demand.map_or(0, |demand| self.idle(&denial, check.limit, demand));
        let cost = alone + idle + self.history.idle;
        let parts = self.parts(&denial, denial.from);
        self.may_be_in_use(entry, check, subject, parts)
            || subject.counted.iter().any(|counted| {
                let denied = if denials_take {
                    self.denied(counted, subject, entry)
                } else {
                    0
                };
                self.is_full(counted, &denial, alone, cost + denied)
            })
    }

    /// What was taken before a reset counts no longer, in the sidecar that was told, and in the windows of its policy. A filter may
    /// know a denial from any sidecar.
    fn reset_before(&self, entry: &Entry, check: &Check) -> u64 {
        let version = |at| self.version(entry.sidecar, at);
        let is_cached = entry.request().is_some_and(|one| one.by == By::Cache);
        let differ = (0..self.policies.len())
            .any(|sidecar| self.version(sidecar, entry.from) != version(entry.from));
        if is_cached && self.history.fleet && differ {
            return 0;
        }
        let resets = self.changes.iter().filter(|one| {
            matches!(one.what, What::Reset { limit, key, done: true } if check.is_of(limit, key))
                && one.sidecar == entry.sidecar
                && entry.from > one.to + SOON
                && version(one.from) == version(entry.from)
                && !self.cut((one.from, one.to))
        });
        resets.map(|one| one.from).max().unwrap_or(0)
    }

    /// What other denied decisions asked for in a window.
    fn denied(&self, counted: &Counted, subject: &Subject, entry: &Entry) -> u64 {
        let gone = self.gone_before(counted, (entry.from, entry.to), 0);
        let asked = subject.asked.iter().filter(|(number, _)| {
            let one = &self.history.log[*number];
            let denied = one.request().is_some_and(Request::is_denied);
            denied && one.from <= entry.to && one.to >= gone && !std::ptr::eq(one, entry)
        });
        asked.map(|(_, check)| check.cost).sum()
    }

    /// All that is asked for, if a limit has leases.
    fn demand(&self, limit: usize, subject: &Subject) -> Demand {
        let mut demand = Demand::new();
        if self.longest_lease(limit) == 0 {
            return demand;
        }
        let asked = subject.asked.iter();
        let asked = asked.map(|(number, check)| (self.history.log[*number].from, check.cost));
        let mut asked: Vec<_> = asked.collect();
        asked.sort_unstable();
        for (at, cost) in asked {
            let (last, weights) = demand.last().copied().unwrap_or((at, [0.0; 2]));
            let faded = |n: usize| weights[n] * (-((at - last) as f64) / MEMORIES_US[n]).exp();
            demand.push((at, [0, 1].map(|n| faded(n) + cost as f64)));
        }
        demand
    }

    /// What may lie idle in leases at a denial, as `docs/leases.md` has it: 2 x D x L, by the most that was asked for lately, or one
    /// for each sidecar.
    fn idle(&self, denial: &Denial, limit: usize, demand: &Demand) -> u64 {
        let longest = self.longest_lease(limit);
        let first = demand.partition_point(|one| one.0 + longest + SOON < denial.from);
        let recent = demand[first.saturating_sub(1)..].iter();
        let recent = recent.take_while(|one| one.0 <= denial.to);
        let per_us = recent.flat_map(|one| [0, 1].map(|n| one.1[n] / MEMORIES_US[n]));
        let units = (2.0 * per_us.fold(0.0, f64::max) * longest as f64) as u64;
        let one_each = if longest > 0 {
            self.history.sidecars
        } else {
            0
        };
        units.max(one_each as u64)
    }

    /// Leases that are lost come back with their window only. Those of token buckets are not told from what drains.
    pub(crate) fn loses_leases(&self, counted: &Counted) -> bool {
        let mut changes = self.changes.iter();
        let mut are_lost = || {
            changes.any(|one| {
                matches!(
                    one.what,
                    What::Down | What::Envoy | What::Lost | What::Reset { .. }
                )
            })
        };
        self.longest_lease(counted.bucket.limit) > 0
            && (self.history.fleet
                || matches!(counted.bucket.algorithm, Algorithm::Token(_))
                || !self.outages.is_empty()
                || !self.clocks.is_empty()
                || are_lost())
    }

    /// Before when a unit must have been taken not to be in the window at any instant of a span.
    pub(crate) fn gone_before(&self, counted: &Counted, (from, _): Time, longer: u64) -> u64 {
        let bucket = counted.bucket;
        let held = match bucket.algorithm {
            Algorithm::Fixed | Algorithm::Day(_) => {
                let clock = self.clock(from);
                return from.saturating_sub(clock - self.window_of(bucket, clock).0);
            }
            Algorithm::Sliding(precision_ms) => bucket.per_us + precision_ms * MS,
            Algorithm::Log | Algorithm::Token(_) | Algorithm::Slots(_) => bucket.per_us,
        };
        (from + 1).saturating_sub(held + longer)
    }

    /// By how much longer shares and leases, which merge what they took, may hold it.
    pub(crate) fn held_longer(&self, counted: &Counted) -> u64 {
        let merges = !self.outages.is_empty() || self.longest_lease(counted.bucket.limit) > 0;
        if merges {
            counted.bucket.per_us / 60 + 1
        } else {
            0
        }
    }

    /// Among how many sidecars a quota may be divided at a denial. One that has ended is counted for a while, beside its successor.
    fn parts(&self, denial: &Denial, from: u64) -> u64 {
        if !denial.share {
            return 1;
        }
        let ended = self.changes.iter().filter(|one| {
            matches!(one.what, What::Down) && meets((one.from, one.to + GONE), (from, denial.to))
        });
        (self.history.sidecars + ended.count()) as u64
    }

    fn is_full(&self, counted: &Counted, denial: &Denial, alone: u64, cost: u64) -> bool {
        let bucket = counted.bucket;
        let from = denial.from.saturating_sub(3 * bucket.per_us);
        let in_force = || counted.in_force((from, denial.to));
        // After a step back a key is held from its first request on, whenever that is; one forward is known with the next answer.
        let soon = (denial.from.saturating_sub(SOON), denial.to);
        let mut steps = self.clocks.iter();
        let stepped = denial.share && !self.clocks.is_empty()
            || steps.any(|(at, by)| *by < 0 && *at <= denial.to || meets((*at, *at), soon));
        if in_force().next().is_none() || stepped || self.loses_leases(counted) {
            return true;
        }
        let parts = self.parts(denial, from);
        let quota = in_force().map(|claim| claim.quota).min().unwrap_or(0) / parts;
        if let Algorithm::Token(_) = bucket.algorithm {
            let mut claims = counted.claims.iter();
            let changes = claims.any(|claim| claim.when != (0, u64::MAX));
            let burst = in_force().map(|claim| claim.burst).min().unwrap_or(0);
            let known = changes || !self.clocks.is_empty() || !self.outages.is_empty();
            return known
                || quota == 0
                || Self::level(counted, denial, quota) + times(alone, bucket.per_us)
                    > times(burst, bucket.per_us);
        }
        // A cached denial of the window before ends with it; a share follows the store's clock as it was known.
        let early = if denial.share { CLOCK } else { 0 };
        let span = (denial.from.saturating_sub(early), denial.to);
        let gone = self.gone_before(counted, span, self.held_longer(counted));
        // A share does not know what comes back.
        let back = if denial.share {
            0
        } else {
            denial.from.saturating_sub(counted.uses.denied_still)
        };
        let used = counted
            .uses
            .at_most(gone.max(denial.since), denial.to, back);
        used + cost > quota
    }

    /// What a token bucket holds at most, in units times its window.
    fn level(counted: &Counted, denial: &Denial, quota: u64) -> u128 {
        let (mut level, mut at) = (0_u128, 0_u64);
        let uses = counted.uses.each.iter();
        for one in uses.filter(|one| one.to >= denial.since && one.from <= denial.to) {
            let ends = one.to.min(denial.from);
            let drained = times(ends.saturating_sub(at), quota);
            level = level.saturating_sub(drained) + times(one.units, counted.bucket.per_us);
            at = at.max(ends);
        }
        let now = denial.from.saturating_sub(SOON).max(at);
        level.saturating_sub(times(now - at, quota))
    }
}

fn times(one: u64, other: u64) -> u128 {
    u128::from(one) * u128::from(other)
}
