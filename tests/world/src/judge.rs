//! Judges a world from the outside, by the promises alone: it knows what was asked, answered and done, and nothing of the code.
//!
//! What is reported is wrong whenever in its span each thing happened. Where a promise has a published allowance, it is
//! counted here as published: `docs/promises.md`, `docs/reliability.md`, `docs/leases.md`.

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
    end: u64,
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
        // While a sidecar starts, its link is not known to be good: its share may decide.
        Self {
            world,
            log,
            end,
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

    fn over_window(
        &self,
        bucket: Bucket,
        uses: &[Use],
        claims: &[Claim],
        requests: Option<u64>,
    ) -> Option<String> {
        let per = bucket.per_ms * MS;
        let aligned = matches!(bucket.algorithm, Algorithm::Fixed | Algorithm::Day(_));
        let certain: Vec<&Use> = uses.iter().filter(|one| one.certain).collect();
        for (last, one) in certain.iter().enumerate() {
            let (mut units, mut since, mut quota) = (
                0,
                one.to,
                one.quota.filter(|_| requests.is_some()).unwrap_or(0),
            );
            if aligned {
                // Both ends of the last use in one window, or nobody knows which.
                let window = self.window_of(bucket, self.clock(one.to));
                if self.window_of(bucket, self.clock(one.from)) != window {
                    continue;
                }
                for other in certain[..=last].iter().rev() {
                    let inside = |at| self.window_of(bucket, self.clock(at)) == window;
                    if inside(other.from) && inside(other.to) {
                        units += other.units;
                        since = since.min(other.from);
                        quota = quota.max(other.quota.filter(|_| requests.is_some()).unwrap_or(0));
                    } else if self.clocks.is_empty() && other.to + 2 * per < one.from {
                        break;
                    }
                }
            } else {
                let ends = self.trailing(one.to);
                for other in certain[..=last].iter().rev() {
                    if self.trailing(other.from) + per <= ends {
                        if self.trailing(other.to) + per + SOON <= ends {
                            break;
                        }
                        continue;
                    }
                    units += other.units;
                    since = since.min(other.from);
                    quota = quota.max(other.quota.filter(|_| requests.is_some()).unwrap_or(0));
                }
            }
            let span = (since, one.to);
            let in_force = claims
                .iter()
                .filter(|claim| meets((claim.from, claim.to), span));
            let quota = in_force
                .map(|claim| claim.quota)
                .max()
                .unwrap_or(0)
                .max(quota.min(requests.unwrap_or(0)));
            let steps = self
                .clocks
                .iter()
                .filter(|(at, by)| aligned && *by < 0 && meets((*at, *at), span))
                .count() as u64;
            let allowed = quota.saturating_mul(1 + steps + self.once_more(bucket, span));
            let allowed = allowed.saturating_add(self.leased_at_steps(bucket, uses, span));
            if units > allowed {
                return Some(format!(
                    "{bucket:?}: {units} of {allowed} (quota {quota}) in {:.3} to {:.3} s",
                    secs(span.0),
                    secs(span.1)
                ));
            }
        }
        None
    }

    /// What leases may have held when the clock stepped: as much as was asked for in twice their length.
    fn leased_at_steps(&self, bucket: Bucket, uses: &[Use], span: (u64, u64)) -> u64 {
        if !self.limits(bucket.limit).any(|(_, of)| of.leases) {
            return 0;
        }
        let steps = self
            .clocks
            .iter()
            .filter(|(at, _)| meets((*at, *at), (span.0.saturating_sub(SOON), span.1 + SOON)));
        let held = |(at, _): &(u64, i64)| {
            let near = (at.saturating_sub(1_000_000), at + 1_000_000);
            let near = uses.iter().filter(|one| meets((one.from, one.to), near));
            near.map(|one| one.taken).sum::<u64>()
        };
        steps.map(held).sum()
    }

    fn over_token(
        &self,
        bucket: Bucket,
        uses: &[Use],
        claims: &[Claim],
        requests: Option<u64>,
    ) -> Option<String> {
        let per = bucket.per_ms * MS;
        // In units times the window's length; since when it holds something.
        let (mut level, mut at, mut since, mut before) = (0_u128, 0_u64, 0_u64, 0_u64);
        for one in uses.iter().filter(|one| one.certain) {
            let now = self.trailing(one.to);
            let span = (since, one.to);
            let in_force = claims
                .iter()
                .filter(|claim| meets((claim.from, claim.to), span));
            let (mut quota, mut burst) = (0, 0);
            for claim in in_force {
                (quota, burst) = (quota.max(claim.quota), burst.max(claim.burst));
            }
            if let Some(up_to) = requests {
                // A request's quota scales the burst.
                let of = claims.iter().map(|claim| {
                    (claim.burst * up_to.max(claim.quota)).div_ceil(claim.quota.max(1))
                });
                (quota, burst) = (quota.max(up_to), burst.max(of.max().unwrap_or(0)));
            }
            if quota == u64::MAX {
                (level, at, since) = (0, now, one.to);
                continue;
            }
            // While shares decide, what flows back does so in the store as well.
            let twice: u64 = self
                .outages
                .iter()
                .map(|(from, to)| (*to).min(one.to).saturating_sub((*from).max(before)))
                .sum();
            before = one.to;
            // A step while calls are under way comes before them or after.
            let step = self
                .clocks
                .iter()
                .filter(|(when, by)| *by > 0 && meets((*when, *when), (one.from, one.to)));
            let twice = twice + step.map(|(_, by)| by.unsigned_abs()).sum::<u64>();
            level = level.saturating_sub(u128::from(now - at + twice) * u128::from(quota));
            if level == 0 {
                since = one.from;
            }
            at = now;
            level += u128::from(one.units) * u128::from(per);
            let allowed =
                u128::from(burst) * u128::from(1 + self.once_more(bucket, span)) * u128::from(per);
            // What calls took to come back has drained; what was leased may be spent half a second later, and has drained as well.
            let leases = self.limits(bucket.limit).any(|(_, of)| of.leases);
            let later = one.to - one.from + if leases { 500 * MS } else { 0 };
            let slack = u128::from(later) * u128::from(quota);
            if level > allowed + slack {
                let units = level / u128::from(per);
                return Some(format!(
                    "{bucket:?}: holds {units} of {burst}, {quota} per {} ms, since {:.3}, at {:.3} s",
                    bucket.per_ms,
                    secs(since),
                    secs(one.to)
                ));
            }
        }
        None
    }

    /// Denials of which it is certain that there was room, and looks that found less than there was.
    fn denials(&self, limit: usize, key: usize, buckets: &[Bucket], wrong: &mut Vec<Wrong>) {
        let versions = self.limits(limit).count();
        let simple = versions == self.world.policies.len()
            && self.limits(limit).all(|(_, of)| {
                !of.leases && of.blocked != Some(key) && of.requests_up_to.is_none()
            });
        if !simple || !self.overrides(limit, key).is_empty() {
            return;
        }
        let used: Vec<(Bucket, Vec<Use>, Vec<Claim>)> = buckets
            .iter()
            .map(|bucket| (*bucket, self.uses(*bucket), self.claims(*bucket)))
            .collect();
        let least = self.world.sidecars as u64;
        for entry in self.log {
            let What::Asked {
                checks,
                said: Said::Denied { .. },
                ..
            } = &entry.what
            else {
                continue;
            };
            let [check] = &checks[..] else { continue };
            if (check.limit, check.key) != (limit, key) {
                continue;
            }
            let of_shares = self
                .outages
                .iter()
                .any(|one| meets(*one, (entry.from, entry.to)));
            let full = used.iter().any(|(bucket, uses, claims)| {
                let per = bucket.per_ms * MS;
                let held = per
                    + per / 60
                    + 1
                    + match bucket.algorithm {
                        Algorithm::Sliding(precision) => precision * MS,
                        _ => 0,
                    };
                // After a step back a key is held from its first request on, whenever that is.
                let back = self
                    .clocks
                    .iter()
                    .any(|(at, by)| *by < 0 && *at <= entry.to);
                let stepped = |span: (u64, u64)| {
                    back || of_shares && !self.clocks.is_empty()
                        || self.clocks.iter().any(|(at, _)| meets((*at, *at), span))
                };
                let mut in_force = claims.iter().filter(|claim| {
                    meets(
                        (claim.from, claim.to),
                        (entry.from.saturating_sub(2 * held), entry.to),
                    )
                });
                let changes = claims
                    .iter()
                    .any(|claim| claim.from > 0 || claim.to < u64::MAX);
                let quota = in_force.clone().map(|claim| claim.quota).min().unwrap_or(0);
                let quota = if of_shares { quota / least } else { quota };
                match bucket.algorithm {
                    Algorithm::Token(_) => {
                        let burst = in_force.map(|claim| claim.burst).min().unwrap_or(0);
                        let burst = if of_shares { burst / least } else { burst };
                        if changes
                            || stepped((0, entry.to))
                            || of_shares
                            || !self.outages.is_empty()
                            || quota == 0
                        {
                            return true;
                        }
                        let (mut level, mut at) = (0_u128, 0_u64);
                        for one in uses.iter().filter(|one| one.from <= entry.to) {
                            level = level.saturating_sub(
                                u128::from(one.to.min(entry.to).saturating_sub(at))
                                    * u128::from(quota),
                            );
                            at = at.max(one.to.min(entry.to));
                            level += u128::from(one.taken) * u128::from(per);
                        }
                        let now = entry.from.saturating_sub(SOON).max(at);
                        level = level.saturating_sub(u128::from(now - at) * u128::from(quota));
                        level + u128::from(check.cost) * u128::from(per)
                            > u128::from(burst) * u128::from(per)
                    }
                    Algorithm::Fixed | Algorithm::Day(_) => {
                        let window = self.window_of(*bucket, self.clock(entry.from));
                        if in_force.next().is_none()
                            || window
                                != self.window_of(
                                    *bucket,
                                    self.clock(entry.from.saturating_sub(CLOCK)),
                                )
                            || window != self.window_of(*bucket, self.clock(entry.to))
                            || stepped((entry.from.saturating_sub(2 * per), entry.to))
                        {
                            return true;
                        }
                        // A cached denial of the window before ends with it.
                        let inside = |at| self.window_of(*bucket, self.clock(at)) == window;
                        let units: u64 = uses
                            .iter()
                            .filter(|one| {
                                one.from <= entry.to && (inside(one.from) || inside(one.to))
                            })
                            .map(|one| one.taken)
                            .sum();
                        units + check.cost > quota
                    }
                    _ => {
                        let horizon = entry.from.saturating_sub(held);
                        if stepped((entry.from.saturating_sub(2 * held), entry.to)) {
                            return true;
                        }
                        let recent = uses
                            .iter()
                            .filter(|one| one.from <= entry.to && one.to + 1 >= horizon);
                        let units: u64 = recent.map(|one| one.taken).sum();
                        units + check.cost > quota
                    }
                }
            });
            if !full {
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

    /// A key that is blocked admits nothing.
    fn blocked(&self, wrong: &mut Vec<Wrong>) {
        for (number, entry) in self.log.iter().enumerate() {
            let What::Override {
                limit,
                key,
                grant: Some(Grant::Blocked),
                until,
                done: true,
            } = entry.what
            else {
                continue;
            };
            let others = self
                .log
                .iter()
                .enumerate()
                .filter(|(other, later)| *other != number && later.to >= entry.from);
            let ends = others.filter_map(|(_, later)| match later.what {
                What::Override {
                    limit: of,
                    key: whose,
                    ..
                } if (of, whose) == (limit, key) => Some(later.from),
                What::Lost => Some(later.from),
                _ => None,
            });
            let stepped = self.clocks.iter().any(|_| until.is_some());
            let until = ends.min().unwrap_or(u64::MAX).min(
                until
                    .filter(|_| !stepped)
                    .unwrap_or(if stepped { 0 } else { u64::MAX }),
            );
            for asked in self.log {
                let What::Asked {
                    checks,
                    peek: false,
                    said: Said::Admitted,
                    ..
                } = &asked.what
                else {
                    continue;
                };
                let of_it = checks
                    .iter()
                    .any(|check| (check.limit, check.key) == (limit, key));
                let cut = self
                    .outages
                    .iter()
                    .any(|one| meets(*one, (entry.to, asked.to)));
                if of_it && !cut && asked.from > entry.to + SOON && asked.to < until {
                    let what = format!(
                        "l{limit} k{key} is blocked and admitted at {:.3} s",
                        secs(asked.from)
                    );
                    wrong.push(Wrong {
                        kind: "blocked",
                        what,
                    });
                    return;
                }
            }
        }
    }

    /// Who asks again when Retry-After says, with nobody else there and nothing changed, is admitted.
    fn again(&self, wrong: &mut Vec<Wrong>) {
        for (number, entry) in self.log.iter().enumerate() {
            let What::Asked {
                checks,
                said: Said::Denied { .. },
                again: true,
                ..
            } = &entry.what
            else {
                continue;
            };
            // The denial before it, by the same sidecar for the same.
            let before = self.log[..number].iter().rev().find(|one| {
                one.sidecar == entry.sidecar
                    && matches!(&one.what, What::Asked { checks: of, said: Said::Denied { retry_ms }, again: false, .. }
                        if of == checks && one.to + retry_ms * MS <= entry.from && one.to + (retry_ms + 5) * MS >= entry.from)
            });
            let Some(before) = before else { continue };
            // A cached denial was made up to a second earlier.
            let span = (before.from.saturating_sub(SOON), entry.to);
            let disturbed = self.log.iter().enumerate().any(|(other, one)| {
                let touches = |limit: usize, key: usize| {
                    checks
                        .iter()
                        .any(|check| (check.limit, check.key) == (limit, key))
                };
                other != number
                    && meets((one.from, one.to), span)
                    && match &one.what {
                        What::Asked {
                            checks: of,
                            said,
                            by,
                            peek,
                            ..
                        } => {
                            !peek
                                && *by != By::Cache
                                && !matches!(said, Said::Denied { .. } | Said::Refused)
                                && of.iter().any(|check| touches(check.limit, check.key))
                        }
                        What::Override { limit, key, .. } | What::Reset { limit, key, .. } => {
                            touches(*limit, *key)
                        }
                        _ => true,
                    }
            });
            let soon = (before.from.saturating_sub(SOON), entry.to);
            let disturbed = disturbed
                || self.outages.iter().any(|one| meets(*one, soon))
                || self.clocks.iter().any(|(at, _)| meets((*at, *at), soon))
                || self.log.iter().any(|one| {
                    matches!(
                        one.what,
                        What::Policy(_)
                            | What::Up
                            | What::Down
                            | What::Override { .. }
                            | What::Lost
                    ) && meets((one.from, one.to), soon)
                        && one.from > 0
                });
            // Units that lie idle in leases come back in between.
            let leases = checks
                .iter()
                .any(|check| self.limits(check.limit).any(|(_, of)| of.leases));
            let unending = checks.iter().any(|check| {
                self.limits(check.limit)
                    .any(|(_, of)| of.blocked == Some(check.key))
|| self.log.iter().any(|one| {
                        matches!(one.what, What::Override { limit, key, grant: Some(Grant::Blocked), until: None, .. }
                            if (limit, key) == (check.limit, check.key))
                    })
            });
            if !disturbed && !leases && !unending {
                let what = format!(
                    "{checks:?} denied at {:.3} s, promised for {:.3} s, denied again",
                    secs(before.from),
                    secs(entry.from)
                );
                wrong.push(Wrong {
                    kind: "retry",
                    what,
                });
                return;
            }
        }
    }
}

fn secs(us: u64) -> f64 {
    us as f64 / 1e6
}
