//! Judges a world from the outside, by the promises alone: it knows what was asked, answered and done, and nothing of the code.
//!
//! What is reported is wrong whenever in its span each thing happened. Where a promise has a published allowance, it is
//! counted here as published: `docs/promises.md`, `docs/reliability.md`, `docs/leases.md`.

mod denials;
mod over;
mod told;

use std::collections::BTreeMap;

use super::filter::{By, Said};
use super::run::{Entry, Shown, What};
use super::script::{Algorithm, Grant, KEYS, Limit, Link, World};

/// After this a change is in force everywhere: overrides are read every 0.4 s, denials cached for 1 s, calls take 0.3 s.
const SOON: u64 = 2_000_000;
/// After a link has become good: until the sidecar has noticed and written back.
const BACK: u64 = 3_000_000;
const MS: u64 = 1_000;
/// A share follows the store's clock as it was known, early by what an answer takes; so a window may end later by it.
const CLOCK: u64 = 150 * MS;

/// What is wrong.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Which promise: the same for all findings of a kind.
    pub kind: &'static str,
    pub what: String,
}

/// One unit of counting: all windows of an algorithm and length for one key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bucket {
    limit: usize,
    key: usize,
    /// A burst is no part of it.
    algorithm: Algorithm,
    per_ms: u64,
}

/// A quota (and burst) that may be in force in a span.
#[derive(Clone, Copy, Debug)]
struct Claim {
    from: u64,
    to: u64,
    quota: u64,
    burst: u64,
}

/// Units that were taken, or may have been.
#[derive(Clone, Copy, Debug)]
struct Use {
    from: u64,
    to: u64,
    /// Without what was returned, and with it.
    units: u64,
    taken: u64,
    certain: bool,
    /// What a request's own quota is.
    quota: Option<u64>,
}

fn identity(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Token(_) => Algorithm::Token(0),
        other => other,
    }
}

struct Judge<'a> {
    world: &'a World,
    log: &'a [Entry],
    /// By sidecar: from when to when which policy may decide.
    policies: Vec<Vec<(u64, u64, usize)>>,
    /// When some sidecar may have decided by shares.
    outages: Vec<(u64, u64)>,
    /// When data was lost, or a sidecar died with what it had not written back.
    losses: Vec<u64>,
    clocks: Vec<(u64, i64)>,
}

fn meets(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// Everything that is wrong with what a world has shown.
pub fn judge(world: &World, shown: &Shown) -> Vec<Wrong> {
    let judge = Judge::new(world, &shown.log);
    let mut wrong = Vec::new();
    if shown.keys_left > 0 {
        let what = format!("{} keys are left", shown.keys_left);
        wrong.push(Wrong {
            kind: "left behind",
            what,
        });
    }
    judge.blocked(&mut wrong);
    judge.again(&mut wrong);
    judge.looked(&mut wrong);
    for limit in 0..world.policies[0].len() {
        for key in 0..KEYS {
            judge.key(limit, key, &mut wrong);
        }
    }
    wrong
}

impl<'a> Judge<'a> {
    fn new(world: &'a World, log: &'a [Entry]) -> Self {
        let end = log.iter().map(|entry| entry.to).max().unwrap_or(0);
        let mut policies = vec![vec![(0, u64::MAX, 0)]; world.sidecars];
        let (mut outages, mut losses, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        let mut bad: Vec<Option<u64>> = vec![None; world.sidecars];
        for entry in log {
            match entry.what {
                What::Policy(version) => {
                    let of = &mut policies[entry.sidecar];
                    if let Some(last) = of.last_mut() {
                        last.1 = entry.to + SOON;
                    }
                    of.push((entry.from, u64::MAX, version));
                }
                What::Link(Link::Good) => {
                    if let Some(from) = bad[entry.sidecar].take() {
                        outages.push((from, entry.to + BACK));
                    }
                }
                What::Link(_) => drop(bad[entry.sidecar].get_or_insert(entry.from)),
                What::Lost => losses.push(entry.from),
                What::Down => {
                    let since = bad[entry.sidecar].is_some()
                        || outages.iter().any(|one: &(u64, u64)| one.1 >= entry.from);
                    losses.extend(since.then_some(entry.from));
                }
                What::Clock(by_ms) => clocks.push((entry.from, by_ms * 1_000)),
                _ => {}
            }
        }
        outages.extend(bad.into_iter().flatten().map(|from| (from, end + BACK)));
        Self {
            world,
            log,
            policies,
            outages,
            losses,
            clocks,
        }
    }

    /// The windows of a limit in each of the policies.
    fn limits(&self, limit: usize) -> impl Iterator<Item = (usize, &Limit)> {
        let policies = self.world.policies.iter().enumerate();
        policies.filter_map(move |(version, policy)| Some((version, policy[limit].as_ref()?)))
    }

    /// The store's clock, or, of the embedded store, the host's.
    fn clock(&self, at: u64) -> u64 {
        let stepped = self.clocks.iter().filter(|(when, _)| *when <= at);
        let stepped: i64 = stepped.map(|(_, by)| *by).sum();
        (self.world.start_us + at).saturating_add_signed(stepped)
    }

    /// The same without steps back: trailing windows hold by it.
    fn trailing(&self, at: u64) -> u64 {
        let stepped = self
            .clocks
            .iter()
            .filter(|(when, by)| *when <= at && *by > 0);
        at + stepped.map(|(_, by)| by.unsigned_abs()).sum::<u64>()
    }

    fn overrides(&self, limit: usize, key: usize) -> Vec<(u64, u64, Grant)> {
        let mut found: Vec<(u64, u64, Grant)> = Vec::new();
        let mut before = 0;
        for entry in self.log {
            if let What::Override {
                limit: of,
                key: whose,
                grant,
                until,
                done,
            } = entry.what
                && (of, whose) == (limit, key)
            {
                // Of two at the same time nobody knows which is the last.
                let after = std::mem::replace(&mut before, entry.to) <= entry.from;
                if done
                    && after
                    && let Some(last) = found.last_mut()
                {
                    last.1 = last.1.min(entry.to + SOON);
                }
                if let Some(grant) = grant {
                    // An end by the wall clock moves with it.
                    let moved: u64 = self.clocks.iter().map(|(_, by)| by.unsigned_abs()).sum();
                    let until = until.map_or(u64::MAX, |until| until + SOON + moved);
                    found.push((entry.from, until, grant));
                }
            }
        }
        found
    }

    /// Which quotas may be in force for a bucket.
    fn claims(&self, bucket: Bucket) -> Vec<Claim> {
        let mut claims = Vec::new();
        let overrides = self.overrides(bucket.limit, bucket.key);
        for (version, limit) in self.limits(bucket.limit) {
            let burst = match limit.algorithm {
                Algorithm::Token(burst) => burst,
                _ => 0,
            };
            let windows = limit
                .windows
                .iter()
                .filter(|window| window.per_ms == bucket.per_ms);
            for window in windows.filter(|_| identity(limit.algorithm) == bucket.algorithm) {
                let mut add = |from, to, quota: u64, burst| {
                    claims.push(Claim {
                        from,
                        to,
                        quota,
                        burst,
                    })
                };
                for spans in &self.policies {
                    for (from, to, _) in spans.iter().filter(|span| span.2 == version) {
                        add(*from, *to, window.quota, burst);
                        for (since, until, grant) in &overrides {
                            let (from, to) = (*from.max(since), *to.min(until));
                            if from > to {
                                continue;
                            }
                            match grant {
                                Grant::Quota(quota) => {
                                    // Without a burst of its own it is scaled, and rounded up.
                                    let scaled = (u128::from(burst) * u128::from(*quota))
                                        .div_ceil(u128::from(window.quota));
                                    add(
                                        from,
                                        to,
                                        *quota,
                                        u64::try_from(scaled).unwrap_or(u64::MAX),
                                    );
                                }
                                Grant::Unlimited => add(from, to, u64::MAX, u64::MAX),
                                Grant::Blocked => {}
                            }
                        }
                    }
                }
            }
        }
        claims
    }

    /// What was taken from a limit for a key while policies with this window may have decided.
    fn uses(&self, bucket: Bucket) -> Vec<Use> {
        let mut returned: BTreeMap<usize, u64> = BTreeMap::new();
        for entry in self.log {
            if let What::GivenBack { entry, units } = entry.what {
                *returned.entry(entry).or_default() += units;
            }
        }
        let mut uses = Vec::new();
        for (number, entry) in self.log.iter().enumerate() {
            let What::Asked {
                checks,
                peek: false,
                said,
                by,
                ..
            } = &entry.what
            else {
                continue;
            };
            let taken = matches!(said, Said::Admitted | Said::Unknown) && *by != By::Cache;
            let checks = checks
                .iter()
                .filter(|check| (check.limit, check.key) == (bucket.limit, bucket.key));
            for check in checks.filter(|check| taken && check.cost > 0) {
                let spans = &self.policies[entry.sidecar];
                let spans = spans
                    .iter()
                    .filter(|span| meets((span.0, span.1), (entry.from, entry.to)));
                let mut counted = spans.map(|span| self.counts(span.2, bucket));
                let all = counted.clone().all(|counts| counts);
                if counted.any(|counts| counts) {
                    let back = returned.get(&number).copied().unwrap_or(0);
                    uses.push(Use {
                        from: entry.from,
                        to: entry.to,
                        units: check.cost - back.min(check.cost),
                        taken: check.cost,
                        certain: all && *said == Said::Admitted,
                        quota: check.quota,
                    });
                }
            }
        }
        uses.sort_by_key(|one| one.to);
        uses
    }

    fn counts(&self, version: usize, bucket: Bucket) -> bool {
        self.world.policies[version][bucket.limit]
            .as_ref()
            .is_some_and(|limit| {
                identity(limit.algorithm) == bucket.algorithm
                    && limit
                        .windows
                        .iter()
                        .any(|window| window.per_ms == bucket.per_ms)
            })
    }

    /// How often a window's quota may be there once more.
    fn once_more(&self, bucket: Bucket, span: (u64, u64)) -> u64 {
        let touching = self.outages.iter().filter(|one| meets(**one, span));
        let outage = touching.clone().count() > 0;
        // One that was away for so long counts as gone, and keeps its share; the others divide it as well.
        let gone = touching
            .filter(|one| one.1 - one.0 >= BACK + 4_000_000)
            .count()
            > 0;
        let outage = u64::from(outage) + u64::from(gone && self.world.sidecars > 1);
        let losses = self
            .losses
            .iter()
            .filter(|at| meets((**at, **at + BACK), span))
            .count();
        let resets = self.log.iter().filter(|entry| {
            matches!(entry.what, What::Reset { limit, key, .. } if (limit, key) == (bucket.limit, bucket.key))
                && meets((entry.from, entry.to), span)
        });
        // A share that is cut off does not notice a step of the clock, and counts by the old one.
        let unnoticed = self.clocks.iter().filter(|(at, _)| {
            self.outages.iter().any(|one| {
                meets(*one, (*at, *at)) && meets(*one, (span.0.saturating_sub(BACK), span.1))
            })
        });
        // A reset gives all of it again.
        (1 + outage + unnoticed.count() as u64 + losses as u64) * (1 + resets.count() as u64) - 1
    }

    fn key(&self, limit: usize, key: usize, wrong: &mut Vec<Wrong>) {
        let mut buckets = Vec::new();
        for (_, of) in self.limits(limit) {
            for window in &of.windows {
                let algorithm = identity(of.algorithm);
                let per_ms = window.per_ms;
                buckets.push(Bucket {
                    limit,
                    key,
                    algorithm,
                    per_ms,
                });
            }
        }
        buckets.sort();
        buckets.dedup();
        for bucket in &buckets {
            let (uses, claims) = (self.uses(*bucket), self.claims(*bucket));
            let requests = self
                .limits(limit)
                .filter_map(|(_, of)| of.requests_up_to)
                .max();
            let over = match bucket.algorithm {
                Algorithm::Token(_) => self.over_token(*bucket, &uses, &claims, requests),
                _ => self.over_window(*bucket, &uses, &claims, requests),
            };
            wrong.extend(over.map(|what| Wrong { kind: "over", what }));
        }
        self.denials(limit, key, &buckets, wrong);
    }

    fn window_of(&self, bucket: Bucket, clock: u64) -> (u64, u64) {
        if let Algorithm::Day(zone) = bucket.algorithm {
            let at = jiff::Timestamp::from_microsecond(clock as i64).expect("a time");
            let at = at.in_tz(zone).expect("a zone");
            let day = at.start_of_day().expect("a day");
            let next = day
                .tomorrow()
                .expect("a day")
                .start_of_day()
                .expect("a day");
            return (
                day.timestamp().as_microsecond() as u64,
                next.timestamp().as_microsecond() as u64,
            );
        }
        let per = bucket.per_ms * MS;
        (clock - clock % per, clock - clock % per + per)
    }
}

fn secs(us: u64) -> f64 {
    us as f64 / 1e6
}
