//! What may have been in force when: policies, overrides, outages and clocks, by what happened.

use std::collections::BTreeMap;

use crate::record::{
    Algorithm, By, Check, Disturbance, Entry, Grant, Held, History, Limit, Link, Said, Settled,
    What,
};
use crate::slots::Slot;
use crate::uses::{Use, Uses};

/// After this a change is in force everywhere: overrides are read every 0.4 s, denials cached for 1 s, calls take 0.3 s.
pub(crate) const SOON: u64 = 2_000_000;
/// After a link has become good: until the sidecar has noticed and written back.
pub(crate) const BACK: u64 = 3_000_000;
pub(crate) const MS: u64 = 1_000;
/// How long a decision's calls take at most.
pub(crate) const CALLS: u64 = 300 * MS;
/// A share follows the store's clock as it was known, early by what an answer takes; so a window may end later by it.
pub(crate) const CLOCK: u64 = 150 * MS;

/// The entry of a taking, its limit and key.
pub(crate) type Taking = (usize, usize, usize);
/// The steps of its settlement, with their numbers in the log.
pub(crate) type Steps = Vec<(usize, Settled)>;

/// From when to when.
pub(crate) type Time = (u64, u64);

pub(crate) const fn meets(a: Time, b: Time) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

/// One unit of counting: all windows of an algorithm and length for one key of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bucket {
    pub limit: usize,
    pub key: usize,
    /// A burst is no part of it.
    pub algorithm: Algorithm,
    pub per_us: u64,
}

/// A quota (and burst) that may be in force in a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub when: Time,
    pub quota: u64,
    pub burst: u64,
}

/// A bucket with what was taken from it, and what may have been in force.
pub(crate) struct Counted {
    pub bucket: Bucket,
    pub uses: Uses,
    pub claims: Vec<Claim>,
}

impl Counted {
    pub(crate) fn in_force(&self, span: Time) -> impl Iterator<Item = &Claim> + Clone {
        let each = self.claims.iter();
        each.filter(move |claim| meets(claim.when, span))
    }
}

/// A limit's key with all that was ever asked of it, by its number in the log.
#[derive(Default)]
pub(crate) struct Subject {
    pub asked: Vec<(usize, Check)>,
    /// When all that was taken before was forgotten, by a reset or a loss: from its begin to when it certainly was.
    pub forgotten: Vec<Time>,
    pub counted: Vec<Counted>,
    /// Every policy has it, and neither overrides, blocks nor requests' own quotas say anything about it.
    pub simple: bool,
    /// The same, and all policies have the same of it.
    pub same: bool,
    /// The same, it counts no tokens, and it was never forgotten.
    pub constant: bool,
    /// If something is reserved: by time, the most that it may hold.
    pub at_once: Vec<(Time, u64)>,
    /// What requests have taken where the limit counts slots.
    pub slots: Vec<Slot>,
    /// How many there may be.
    pub slot_claims: Vec<Claim>,
}

pub(crate) struct Judge<'a> {
    pub history: &'a History,
    /// By sidecar: from when to when which policy may decide.
    pub policies: Vec<Vec<(u64, u64, usize)>>,
    /// When some sidecar may have decided by shares.
    pub outages: Vec<Time>,
    /// The same of each sidecar.
    pub outages_of: Vec<Vec<Time>>,
    /// By sidecar: when it was certainly without the store, but for what it needs to notice.
    pub away_of: Vec<Vec<Time>>,
    /// When one was away for so long that it counted as gone and kept its share, while the others divide it as well: until all
    /// have learned that it is back, which they do not while they are away themselves. What they admit by it stays in its window.
    gone: Vec<Time>,
    /// When a sidecar ended whose share had decided: it knows no longer what that admitted.
    deaths: Vec<u64>,
    pub clocks: Vec<(u64, i64)>,
    /// Everything that is no request.
    pub changes: Vec<&'a Entry>,
    /// The steps of settlements.
    pub settled: BTreeMap<Taking, Steps>,
    /// What happened to slots, by the entry of their taking and the key: with its number in the log. A consumer's are in another limit
    /// when its tier is another.
    pub held: BTreeMap<(usize, usize), Vec<(usize, Held)>>,
    /// From when on how much of it was returned, as far as it may have been.
    pub returned: BTreeMap<Taking, Vec<(u64, u64)>>,
    pub subjects: BTreeMap<(usize, usize), Subject>,
}

fn identity(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Token(_) => Algorithm::Token(0),
        Algorithm::Slots(_) => Algorithm::Slots(0),
        other => other,
    }
}

impl<'a> Judge<'a> {
    pub(crate) fn new(history: &'a History) -> Self {
        let log = &history.log[..];
        let end = log.iter().map(|entry| entry.to).max().unwrap_or(0);
        let mut judge = Self {
            history,
            policies: vec![vec![(0, u64::MAX, 0)]; history.sidecars],
            outages: Vec::new(),
            outages_of: vec![Vec::new(); history.sidecars],
            away_of: vec![Vec::new(); history.sidecars],
            gone: Vec::new(),
            deaths: Vec::new(),
            clocks: Vec::new(),
            changes: Vec::new(),
            settled: BTreeMap::new(),
            held: BTreeMap::new(),
            returned: BTreeMap::new(),
            subjects: BTreeMap::new(),
        };
        let mut bad: Vec<Option<u64>> = vec![None; history.sidecars];
        let mut away = bad.clone();
        // A call that is late by a clock that has stepped is made once more: on a slow link there is no time for that.
        let steps = log.iter().any(|entry| matches!(entry.what, What::Clock(_)));
        let is_good = |link: &Link| match link {
            Link::Good => true,
            Link::Slow(there, back) => there + back < 90 && !steps,
            Link::Cut | Link::LosesAnswers | Link::RefusesHalf => false,
        };
        for (number, entry) in log.iter().enumerate() {
            let sidecar = entry.sidecar;
            if let What::Link(link) = &entry.what {
                // What a share knows is told to the store when the link changes.
                let until = away[sidecar].take().map(|from| (from, entry.from));
                judge.away_of[sidecar].extend(until);
                // Where half of all keys are refused, the store may decide on a key until a share does for a moment, because another one
                // is refused: what the store has admitted, the share knows from the next renewal on.
                let works = matches!(link, Link::Good | Link::RefusesHalf)
                    || matches!(link, Link::Slow(there, back) if there + back < 100);
                away[sidecar] = (!works).then_some(entry.to);
            }
            match &entry.what {
                What::Asked(request) => {
                    for check in &request.checks {
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
                    }
                }
                What::Link(_) => {
                    // Nobody has told the store of what a share knows in a moment between two outages: they are one.
                    let is_one = |last: &mut Time| last.1 >= entry.from;
                    let last = judge.outages_of[sidecar].pop_if(is_one);
                    let from = last.map_or(entry.from, |last| last.0);
                    bad[sidecar].get_or_insert(from);
                }
                What::Down => {
                    let had_share = bad[sidecar].is_some() || !judge.outages_of[sidecar].is_empty();
                    judge.deaths.extend(had_share.then_some(entry.from));
                }
                What::Clock(by_ms) => judge.clocks.push((entry.from, by_ms * 1_000)),
                What::Settled(settled) => {
                    let of = (settled.entry, settled.limit, settled.key);
                    let of = judge.settled.entry(of).or_default();
                    of.push((number, *settled));
                    continue;
                }
                What::Held(held) => {
                    let of = judge.held.entry((held.entry, held.key)).or_default();
                    of.push((number, *held));
                    continue;
                }
                _ => {}
            }
            judge.changes.push(entry);
        }
        for (sidecar, from) in bad.into_iter().enumerate() {
            let still = from.map(|from| (from, end + BACK));
            judge.outages_of[sidecar].extend(still);
        }
        judge.outages = judge.outages_of.concat();
        // A call that is late by a step is made once more; by two of them in a row, it is as if there was no answer.
        for pair in judge.clocks.windows(2) {
            let (first, second) = (pair[0].0, pair[1].0);
            if second - first <= CALLS {
                let span = (first.saturating_sub(CALLS), second + BACK);
                judge.outages.push(span);
                judge.outages_of.iter_mut().for_each(|of| of.push(span));
            }
        }
        judge.outages.sort_unstable();
        if history.sidecars > 1 {
            let long = |one: &&Time| one.1 - one.0 >= BACK + 4_000_000;
            let long = judge.outages.iter().filter(long);
            judge.gone = long.map(|one| (one.0, judge.known_by(one.1))).collect();
        }
        judge.returned = judge.returned_units();
        let mut subjects = std::mem::take(&mut judge.subjects);
        for ((limit, key), subject) in &mut subjects {
            judge.complete(*limit, *key, subject);
        }
        judge.subjects = subjects;
        judge
    }

    /// What follows from what was asked of a limit's key.
    fn complete(&self, limit: usize, key: usize, subject: &mut Subject) {
        let overrides = self.overrides(limit, key);
        let own = |of: &Limit| of.blocked == Some(key) || of.requests_up_to.is_some();
        let of = || self.limits(limit).map(|(_, of)| of);
        let count = of().count();
        let windows = |of: &Limit| (of.windows.clone(), of.algorithm);
        let first = of().next().map(windows);
        subject.forgotten = self.forgotten(limit, key);
        subject.simple =
            count == self.history.policies.len() && overrides.is_empty() && !of().any(own);
        subject.same = subject.simple && of().all(|of| Some(windows(of)) == first);
        subject.constant = subject.same
            && subject.forgotten.is_empty()
            && !of().any(|of| matches!(of.algorithm, Algorithm::Token(_)));
        if subject.asked.iter().any(|(_, check)| check.most.is_some()) {
            subject.at_once = self.at_once(limit, &overrides);
        }
        (subject.slots, subject.slot_claims) = self.slots_of((limit, key), subject, &overrides);
        // Slots are no units of a window.
        let of_units = of().filter(|of| !matches!(of.algorithm, Algorithm::Slots(_)));
        let buckets = of_units.flat_map(|of| {
            of.windows.iter().map(move |window| Bucket {
                limit,
                key,
                algorithm: identity(of.algorithm),
                per_us: window.per_ms * MS,
            })
        });
        let mut buckets: Vec<_> = buckets.collect();
        buckets.sort();
        buckets.dedup();
        let counted = buckets.into_iter().map(|bucket| Counted {
            bucket,
            uses: self.uses_with_settled(bucket, subject),
            claims: self.claims(bucket, &overrides),
        });
        subject.counted = counted.collect();
    }

    /// When all that was taken of a key was forgotten. What is leased is spent after it.
    fn forgotten(&self, limit: usize, key: usize) -> Vec<Time> {
        let leased = self.longest_lease(limit);
        let found = self.changes.iter().filter_map(|entry| match entry.what {
            What::Reset {
                limit: of,
                key: whose,
                done,
            } if (of, whose) == (limit, key) => {
                let later = if done { 0 } else { SOON };
                Some((entry.from, entry.to + later + leased))
            }
            What::Lost => Some((entry.from, entry.to + leased)),
            _ => None,
        });
        let mut found: Vec<_> = found.collect();
        found.sort_unstable();
        found
    }

    /// For how long units of a limit may be leased; 0 if it never has leases.
    pub(crate) fn longest_lease(&self, limit: usize) -> u64 {
        let leases = self.limits(limit).filter_map(|(_, of)| of.lease_ms);
        leases.max().unwrap_or(0) * MS
    }

    /// The policy of a sidecar at a time, as it was told.
    pub(crate) fn version(&self, sidecar: usize, at: u64) -> usize {
        let mut told = self.policies[sidecar].iter().rev();
        let span = told.find(|span| span.0 <= at);
        span.map_or(0, |span| span.2)
    }

    /// Whether some sidecar may be without the store in a span.
    pub(crate) fn cut(&self, span: Time) -> bool {
        self.outages.iter().any(|one| meets(*one, span))
    }

    /// The disturbances of a kind that touch a span.
    pub(crate) fn disturbing(&self, span: Time, which: fn(&Disturbance) -> bool) -> usize {
        let each = self.history.disturbances.iter();
        let each = each.filter(|one| which(one) && meets((one.when.from, one.when.to), span));
        each.count()
    }

    /// What was admitted until then may be forgotten at `when`, by a disturbance; 0 if nothing is.
    pub(crate) fn forgotten_until(&self, when: u64) -> u64 {
        let each = self.history.disturbances.iter();
        let forgets = each.filter(|one| one.forgets && one.when.from <= when);
        forgets.map(|one| one.when.to).max().unwrap_or(0)
    }

    /// A limit in each of the policies that have it.
    pub(crate) fn limits(&self, limit: usize) -> impl Iterator<Item = (usize, &'a Limit)> {
        let policies = self.history.policies.iter().enumerate();
        policies.filter_map(move |(version, policy)| Some((version, policy[limit].as_ref()?)))
    }

    /// The store's clock, or, of the embedded store, the host's.
    pub(crate) fn clock(&self, at: u64) -> u64 {
        let stepped = self.clocks.iter().filter(|(when, _)| *when <= at);
        let stepped: i64 = stepped.map(|(_, by)| *by).sum();
        (self.history.start_us + at).saturating_add_signed(stepped)
    }

    /// The same without steps back: trailing windows hold by it.
    pub(crate) fn trailing(&self, at: u64) -> u64 {
        let each = self.clocks.iter();
        let forward = each.filter(|(when, by)| *when <= at && *by > 0);
        at + forward.map(|(_, by)| by.unsigned_abs()).sum::<u64>()
    }

    /// When all sidecars know what was changed then: those that are cut off do when they are back.
    fn known_by(&self, changed: u64) -> u64 {
        let mut known = changed + SOON;
        for one in &self.outages {
            if meets(*one, (changed, known)) {
                known = known.max(one.1 + SOON);
            }
        }
        known
    }

    pub(crate) fn overrides(&self, limit: usize, key: usize) -> Vec<(Time, Grant)> {
        let mut found: Vec<(Time, Grant)> = Vec::new();
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
                    && let Some((last, _)) = found.last_mut()
                {
                    last.1 = last.1.min(self.known_by(entry.to));
                }
                if let Some(grant) = grant {
                    // An end by the wall clock moves with it.
                    let moved: u64 = self.clocks.iter().map(|(_, by)| by.unsigned_abs()).sum();
                    let until = until.map_or(u64::MAX, |until| until + SOON + moved);
                    found.push(((entry.from, until), grant));
                }
            }
        }
        found
    }

    /// By sidecar: from when to when it may decide on a limit by which policy. What the one in force lacks is kept of an earlier one.
    pub(crate) fn deciding(&self, limit: usize) -> Vec<Vec<(u64, u64, usize)>> {
        let spans_of = |spans: &Vec<(u64, u64, usize)>| {
            let mut last = None;
            let spans = spans.iter().map(|(from, to, version)| {
                if self.history.policies[*version][limit].is_some() {
                    last = Some(*version);
                }
                (*from, *to, last.unwrap_or(*version))
            });
            spans.collect()
        };
        self.policies.iter().map(spans_of).collect()
    }

    /// Which quotas may be in force for a bucket.
    fn claims(&self, bucket: Bucket, overrides: &[(Time, Grant)]) -> Vec<Claim> {
        let mut claims = Vec::new();
        let deciding = self.deciding(bucket.limit).concat();
        for (version, limit) in self.limits(bucket.limit) {
            let burst = match limit.algorithm {
                Algorithm::Token(burst) => burst,
                _ => 0,
            };
            let windows = limit.windows.iter();
            let windows = windows.filter(|window| {
                window.per_ms * MS == bucket.per_us && identity(limit.algorithm) == bucket.algorithm
            });
            for window in windows {
                for (from, to, _) in deciding.iter().filter(|span| span.2 == version) {
                    let mut add =
                        |when, quota: u64, burst| claims.push(Claim { when, quota, burst });
                    add((*from, *to), window.quota, burst);
                    for ((since, until), grant) in overrides {
                        let when = (*from.max(since), *to.min(until));
                        if when.0 > when.1 {
                            continue;
                        }
                        match grant {
                            Grant::Quota(quota, own) => {
                                // Without a burst of its own it is scaled, and rounded up.
                                let scaled = (burst * quota).div_ceil(window.quota);
                                add(when, *quota, own.unwrap_or(scaled));
                            }
                            Grant::Unlimited => add(when, u64::MAX, u64::MAX),
                            Grant::Blocked => {}
                        }
                    }
                }
            }
        }
        claims
    }

    /// What was taken while policies with this window may have decided.
    pub(crate) fn uses(&self, bucket: Bucket, subject: &Subject) -> Vec<Use> {
        let mut uses = Vec::new();
        let deciding = self.deciding(bucket.limit);
        for (number, check) in &subject.asked {
            let entry = &self.history.log[*number];
            let Some(request) = entry.request().filter(|request| request.may_take()) else {
                continue;
            };
            let when = entry.when();
            // Nobody knows which sidecar of a fleet has lent the units of a lease.
            let is_lent = self.history.fleet && request.by == By::Lease;
            let lenders = deciding.iter().enumerate();
            let lenders = lenders.filter(|(sidecar, _)| is_lent || *sidecar == entry.sidecar);
            let spans = lenders.flat_map(|(_, spans)| spans);
            let spans = spans.filter(|span| meets((span.0, span.1), when));
            let mut counted = spans.map(|span| self.counts(span.2, bucket));
            let all = counted.clone().all(|counts| counts);
            let mut outages = self.outages_of[entry.sidecar].iter();
            // What reserves nothing needs that something is left.
            if (check.cost > 0 || check.most.is_some()) && counted.any(|counts| counts) {
                let (least, units) = subject.taken(when, check);
                // Who was told nothing may have gone before the decision: its calls may still be under way, over an edge.
                let late = if request.said == Said::Unknown {
                    CALLS
                } else {
                    0
                };
                uses.push(Use {
                    entry: *number,
                    from: entry.from,
                    to: entry.to + late,
                    units,
                    least,
                    certain: all && request.is_admitted(),
                    charged: false,
                    by_share: outages.any(|outage| meets(*outage, when)),
                    quota: check.quota,
                });
            }
        }
        uses
    }

    pub(crate) fn counts(&self, version: usize, bucket: Bucket) -> bool {
        let limit = self.history.policies[version][bucket.limit].as_ref();
        limit.is_some_and(|limit| {
            let mut windows = limit.windows.iter();
            identity(limit.algorithm) == bucket.algorithm
                && windows.any(|window| window.per_ms * MS == bucket.per_us)
        })
    }

    /// How often the quota may be there once more for a request that is admitted in this span, besides what was taken since
    /// then: only while a share may decide it.
    pub(crate) fn once_more(&self, now: Time, since: u64) -> u64 {
        let span = (since, now.1);
        let cut = self.cut(now);
        let gone = cut && self.gone.iter().any(|one| meets(*one, span));
        let deaths = self.deaths.iter();
        let died = deaths.filter(|at| meets((**at, **at + BACK), span));
        // A share that is cut off does not notice a step of the clock, and counts by the old one.
        let unnoticed = self.clocks.iter().zip(&self.history.told);
        let unnoticed = unnoticed.filter(|((at, _), told)| {
            self.outages.iter().any(|one| {
                meets(*one, (*at, **told)) && meets(*one, (span.0.saturating_sub(BACK), span.1))
            })
        });
        u64::from(cut) + u64::from(gone) + (died.count() + unnoticed.count()) as u64
    }

    /// The window with edges that a time of the store's clock is in.
    pub(crate) fn window_of(&self, bucket: Bucket, clock: u64) -> Time {
        let Algorithm::Day(zone) = bucket.algorithm else {
            let from = clock - clock % bucket.per_us;
            return (from, from + bucket.per_us);
        };
        let of_zone = self.history.days.iter().find(|(of, _)| *of == zone);
        let days = &of_zone.expect("the days of each zone are recorded").1;
        let next = days.partition_point(|at| *at <= clock);
        (days[next - 1], days[next])
    }
}
