//! Judges a world from the outside, by the promises alone: it knows what was asked, answered and done, and nothing of the code.
//!
//! What is reported is wrong whenever in its span each thing happened. Where a promise has a published allowance, it is
//! counted here as published: `docs/promises.md`, `docs/reliability.md`, `docs/leases.md`.

mod denials;
mod metered;
mod over;
mod told;

use std::cell::Cell;
use std::collections::BTreeMap;

use super::filter::{By, Said};
use super::run::{Entry, Shown, What};
use super::script::{Algorithm, Check, Grant, Limit, Link, World};

/// After this a change is in force everywhere: overrides are read every 0.4 s, denials cached for 1 s, calls take 0.3 s.
const SOON: u64 = 2_000_000;
/// After a link has become good: until the sidecar has noticed and written back.
const BACK: u64 = 3_000_000;
const MS: u64 = 1_000;
/// How long a decision's calls take at most.
const CALLS: u64 = 300 * MS;
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
    /// Its number in the log.
    entry: usize,
    from: u64,
    to: u64,
    units: u64,
    certain: bool,
    /// What a request's own quota is.
    quota: Option<u64>,
}

/// A bucket with what was taken from it, in order of its end, and what may have been in force.
struct Counted {
    bucket: Bucket,
    uses: Vec<Use>,
    claims: Vec<Claim>,
}

/// A limit's key with all that was ever asked of it, by its number in the log.
#[derive(Default)]
struct Subject {
    asked: Vec<(usize, Check)>,
    /// When all that was taken before was forgotten, by a reset or a loss: from its begin to when it certainly was.
    forgotten: Vec<(u64, u64)>,
    counted: Vec<Counted>,
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
    /// The same of each sidecar.
    outages_of: Vec<Vec<(u64, u64)>>,
    /// When one was away for so long that it counted as gone and kept its share, while the others divide it as well: until all
    /// have learned that it is back, which they do not while they are away themselves.
    gone: Vec<(u64, u64)>,
    /// When a sidecar ended whose share had decided: it knows no longer what that admitted.
    deaths: Vec<u64>,
    clocks: Vec<(u64, i64)>,
    /// For each: when the last sidecar knew.
    told: &'a [u64],
    /// Everything that is no request.
    changes: Vec<&'a Entry>,
    /// By the entry of the taking: from when on how much of it was returned.
    returned: BTreeMap<usize, Vec<(u64, u64)>>,
    subjects: BTreeMap<(usize, usize), Subject>,
    /// The day that was asked for last.
    day: Cell<(&'static str, (u64, u64))>,
}

fn meets(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// Everything that is wrong with what a world has shown.
pub fn judge(world: &World, shown: &Shown) -> Vec<Wrong> {
    let judge = Judge::new(world, shown);
    let mut wrong = Vec::new();
    if shown.keys_left > 0 {
        let what = format!("{} keys are left", shown.keys_left);
        wrong.push(Wrong {
            kind: "left behind",
            what,
        });
    }
    if shown.is_behind {
        let what = "all sidecars have other rules than their filter".to_owned();
        wrong.push(Wrong {
            kind: "rules",
            what,
        });
    }
    let asked = |one: &&Entry| {
        matches!(
            one.what,
            What::Asked {
                said: Said::Unknown,
                ..
            }
        )
    };
    let healed = shown.log.iter().filter(|one| one.from >= shown.healed);
    wrong.extend(healed.filter(asked).map(|one| Wrong {
        kind: "unhealed",
        what: format!("no verdict at {:.3} s: {:?}", secs(one.from), one.what),
    }));
    judge.metered(&mut wrong);
    judge.blocked(&mut wrong);
    judge.again(&mut wrong);
    judge.looked(shown.healed, &mut wrong);
    for ((limit, _), subject) in &judge.subjects {
        let requests = judge.limits(*limit).filter_map(|(_, of)| of.requests_up_to);
        let requests = requests.max();
        for counted in &subject.counted {
            let over = match counted.bucket.algorithm {
                Algorithm::Token(_) => judge.over_token(counted, subject, requests),
                _ => judge.over_window(counted, subject, requests),
            };
            wrong.extend(over.map(|what| Wrong { kind: "over", what }));
        }
        judge.denials(subject, &mut wrong);
    }
    wrong
}

impl<'a> Judge<'a> {
    fn new(world: &'a World, shown: &'a Shown) -> Self {
        let log = &shown.log[..];
        let end = log.iter().map(|entry| entry.to).max().unwrap_or(0);
        let mut judge = Self {
            world,
            log,
            policies: vec![vec![(0, u64::MAX, 0)]; world.sidecars],
            outages: Vec::new(),
            outages_of: vec![Vec::new(); world.sidecars],
            gone: Vec::new(),
            deaths: Vec::new(),
            clocks: Vec::new(),
            told: &shown.told,
            changes: Vec::new(),
            returned: BTreeMap::new(),
            subjects: BTreeMap::new(),
            day: Cell::new(("", (0, 0))),
        };
        let mut bad: Vec<Option<u64>> = vec![None; world.sidecars];
        // A call that is late by a clock that has stepped is made once more: on a slow link there is no time for that.
        let steps = log.iter().any(|entry| matches!(entry.what, What::Clock(_)));
        let is_good = |link: &Link| match link {
            Link::Good => true,
            Link::Slow(there, back) => there + back < 90 && !steps,
            Link::Cut | Link::LosesAnswers | Link::RefusesHalf => false,
        };
        for (number, entry) in log.iter().enumerate() {
            let sidecar = entry.sidecar;
            match &entry.what {
                What::Asked { checks, .. } => {
                    for check in checks {
                        let subject = judge.subjects.entry((check.limit, check.key));
                        subject.or_default().asked.push((number, *check));
                    }
                    continue;
                }
                What::Policy(version) => {
                    let of = &mut judge.policies[sidecar];
                    if let Some(last) = of.last_mut() {
                        last.1 = entry.to + SOON;
                    }
                    of.push((entry.from, u64::MAX, *version));
                }
                What::Link(link) if is_good(link) => {
                    if let Some(from) = bad[sidecar].take() {
                        judge.outages_of[sidecar].push((from, entry.to + BACK));
                        judge.outages.push((from, entry.to + BACK));
                    }
                }
                What::Link(_) => drop(bad[sidecar].get_or_insert(entry.from)),
                What::Down => {
                    let had_share = bad[sidecar].is_some() || !judge.outages_of[sidecar].is_empty();
                    judge.deaths.extend(had_share.then_some(entry.from));
                }
                What::Clock(by_ms) => judge.clocks.push((entry.from, by_ms * 1_000)),
                What::GivenBack { entry: of, units } => {
                    judge
                        .returned
                        .entry(*of)
                        .or_default()
                        .push((entry.from, *units));
                }
                _ => {}
            }
            judge.changes.push(entry);
        }
        // A call that is late by a step is made once more; by two of them in a row, it is as if there was no answer.
        for pair in judge.clocks.windows(2) {
            if let [(first, _), (second, _)] = pair
                && second - first <= CALLS
            {
                let span = (first.saturating_sub(CALLS), second + BACK);
                judge.outages.push(span);
                judge.outages_of.iter_mut().for_each(|of| of.push(span));
            }
        }
        for (sidecar, from) in bad.into_iter().enumerate() {
            let still = from.map(|from| (from, end + BACK));
            judge.outages_of[sidecar].extend(still);
            judge.outages.extend(still);
        }
        if world.sidecars > 1 {
            let long = |one: &&(u64, u64)| one.1 - one.0 >= BACK + 4_000_000;
            let long = judge.outages.iter().filter(long);
            judge.gone = long.map(|one| (one.0, judge.known_by(one.1))).collect();
        }
        let mut subjects = std::mem::take(&mut judge.subjects);
        for ((limit, key), subject) in &mut subjects {
            subject.forgotten = judge.forgotten(*limit, *key);
            subject.counted = judge.counted(*limit, *key, &subject.asked);
        }
        judge.subjects = subjects;
        judge
    }

    /// When all that was taken of a key was forgotten. What is leased is spent after it.
    fn forgotten(&self, limit: usize, key: usize) -> Vec<(u64, u64)> {
        let leased = self.longest_lease(limit);
        let mut found = Vec::new();
        for entry in &self.changes {
            match entry.what {
                What::Reset {
                    limit: of,
                    key: whose,
                    done,
                } if (of, whose) == (limit, key) => {
                    let later = if done { 0 } else { SOON };
                    found.push((entry.from, entry.to + later + leased));
                }
                What::Lost => found.push((entry.from, entry.to + leased)),
                _ => {}
            }
        }
        found.sort_unstable();
        found
    }

    /// For how long units of a limit may be leased; 0 if it never has leases.
    fn longest_lease(&self, limit: usize) -> u64 {
        let leases = self.limits(limit).filter_map(|(_, of)| of.lease_ms);
        leases.max().unwrap_or(0) * MS
    }

    /// Whether a share may have decided.
    fn by_share(&self, one: &Use) -> bool {
        let mut outages = self.outages_of[self.log[one.entry].sidecar].iter();
        outages.any(|outage| meets(*outage, (one.from, one.to)))
    }

    /// The policy of a sidecar at a time, as it was told.
    fn version(&self, sidecar: usize, at: u64) -> usize {
        let mut told = self.policies[sidecar].iter().rev();
        let span = told.find(|span| span.0 <= at);
        span.map_or(0, |span| span.2)
    }

    /// Whether some sidecar may be without the store in a span.
    fn cut(&self, span: (u64, u64)) -> bool {
        self.outages.iter().any(|one| meets(*one, span))
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

    /// When all sidecars know what was changed then: those that are cut off do when they are back.
    fn known_by(&self, changed: u64) -> u64 {
        let mut known = changed + SOON;
        let mut outages = self.outages.clone();
        outages.sort_unstable();
        for one in outages {
            if meets(one, (changed, known)) {
                known = known.max(one.1 + SOON);
            }
        }
        known
    }

    fn overrides(&self, limit: usize, key: usize) -> Vec<(u64, u64, Grant)> {
        let mut found: Vec<(u64, u64, Grant)> = Vec::new();
        let mut before = 0;
        for entry in &self.changes {
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
                    last.1 = last.1.min(self.known_by(entry.to));
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

    /// By sidecar: from when to when it may decide on a limit by which policy. What the one in force lacks is kept of an earlier one.
    fn deciding(&self, limit: usize) -> impl Iterator<Item = Vec<(u64, u64, usize)>> {
        let policies = &self.world.policies;
        self.policies.iter().map(move |spans| {
            let mut last = None;
            let spans = spans.iter().map(|(from, to, version)| {
                if policies[*version][limit].is_some() {
                    last = Some(*version);
                }
                (*from, *to, last.unwrap_or(*version))
            });
            spans.collect()
        })
    }

    /// Which quotas may be in force for a bucket.
    fn claims(&self, bucket: Bucket) -> Vec<Claim> {
        let mut claims = Vec::new();
        let overrides = self.overrides(bucket.limit, bucket.key);
        let deciding: Vec<_> = self.deciding(bucket.limit).collect();
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
                for spans in &deciding {
                    for (from, to, _) in spans.iter().filter(|span| span.2 == version) {
                        add(*from, *to, window.quota, burst);
                        for (since, until, grant) in &overrides {
                            let (from, to) = (*from.max(since), *to.min(until));
                            if from > to {
                                continue;
                            }
                            match grant {
                                Grant::Quota(quota, own) => {
                                    // Without a burst of its own it is scaled, and rounded up.
                                    let scaled = (burst * quota).div_ceil(window.quota);
                                    add(from, to, *quota, own.unwrap_or(scaled));
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

    /// The buckets of a limit's key.
    fn counted(&self, limit: usize, key: usize, asked: &[(usize, Check)]) -> Vec<Counted> {
        let mut buckets = Vec::new();
        for (_, of) in self.limits(limit) {
            let algorithm = identity(of.algorithm);
            buckets.extend(of.windows.iter().map(|window| Bucket {
                limit,
                key,
                algorithm,
                per_ms: window.per_ms,
            }));
        }
        buckets.sort();
        buckets.dedup();
        let counted = buckets.into_iter().map(|bucket| Counted {
            bucket,
            uses: self.uses(bucket, asked),
            claims: self.claims(bucket),
        });
        counted.collect()
    }

    /// What was taken while policies with this window may have decided.
    fn uses(&self, bucket: Bucket, asked: &[(usize, Check)]) -> Vec<Use> {
        let mut uses = Vec::new();
        let deciding: Vec<_> = self.deciding(bucket.limit).collect();
        for (number, check) in asked {
            let entry = &self.log[*number];
            let What::Asked {
                peek: false,
                said: said @ (Said::Admitted | Said::Unknown),
                by: By::Sidecar | By::Lease,
                ..
            } = &entry.what
            else {
                continue;
            };
            if check.cost == 0 {
                continue;
            }
            let spans = deciding[entry.sidecar].iter();
            let spans = spans.filter(|span| meets((span.0, span.1), (entry.from, entry.to)));
            let mut counted = spans.map(|span| self.counts(span.2, bucket));
            let all = counted.clone().all(|counts| counts);
            if counted.any(|counts| counts) {
                uses.push(Use {
                    entry: *number,
                    from: entry.from,
                    to: entry.to,
                    units: check.cost,
                    certain: all && *said == Said::Admitted,
                    quota: check.quota,
                });
            }
        }
        uses.sort_by_key(|one| one.to);
        uses
    }

    fn counts(&self, version: usize, bucket: Bucket) -> bool {
        let limit = self.world.policies[version][bucket.limit].as_ref();
        limit.is_some_and(|limit| {
            identity(limit.algorithm) == bucket.algorithm
                && limit
                    .windows
                    .iter()
                    .any(|window| window.per_ms == bucket.per_ms)
        })
    }

    /// How often the quota may be there once more for a request that is admitted in this span, besides what was taken since
    /// then: only while a share may decide it.
    fn once_more(&self, now: (u64, u64), since: u64) -> u64 {
        let span = (since, now.1);
        let cut = self.cut(now);
        let gone = cut && self.gone.iter().any(|one| meets(*one, now));
        let died = self
            .deaths
            .iter()
            .filter(|at| meets((**at, **at + BACK), span));
        // A share that is cut off does not notice a step of the clock, and counts by the old one.
        let unnoticed = self.clocks.iter().zip(self.told).filter(|((at, _), told)| {
            self.outages.iter().any(|one| {
                meets(*one, (*at, **told)) && meets(*one, (span.0.saturating_sub(BACK), span.1))
            })
        });
        u64::from(cut) + u64::from(gone) + (died.count() + unnoticed.count()) as u64
    }

    fn window_of(&self, bucket: Bucket, clock: u64) -> (u64, u64) {
        if let Algorithm::Day(zone) = bucket.algorithm {
            let (of, known) = self.day.get();
            if of == zone && known.0 <= clock && clock < known.1 {
                return known;
            }
            let at = jiff::Timestamp::from_microsecond(clock as i64).expect("a time");
            let at = at.in_tz(zone).expect("a zone");
            let day = at.start_of_day().expect("a day");
            let next = day
                .tomorrow()
                .expect("a day")
                .start_of_day()
                .expect("a day");
            let us = |at: &jiff::Zoned| at.timestamp().as_microsecond() as u64;
            self.day.set((zone, (us(&day), us(&next))));
            return (us(&day), us(&next));
        }
        let per = bucket.per_ms * MS;
        (clock - clock % per, clock - clock % per + per)
    }
}

fn secs(us: u64) -> f64 {
    us as f64 / 1e6
}
