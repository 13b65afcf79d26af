//! States that worlds have to reach: a world that never comes to one shows nothing about it.

use std::collections::{BTreeMap, BTreeSet};

use super::run::{By, Entry, Request, Said, Settled, Shown, Told, What};
use super::script::{Check, Event, Grant, Link, World};
use super::slots;

/// What happened to a sidecar so far.
#[derive(Clone, Copy, Default)]
struct Sidecar {
    is_cut: bool,
    is_full: bool,
    /// The store refuses some keys.
    refuses: bool,
    version: usize,
}

/// The states; each seed counts once for each.
pub const STATES: [&str; 60] = [
    "a key has nothing left",
    "a share admits",
    "a share denies",
    "a sidecar ends while it decides by a share",
    "a request has no verdict",
    "a denial from the filter's cache",
    "units from a filter's lease",
    "a receipt returns units",
    "a receipt returns nothing",
    "a receipt is given back after a reset",
    "a limit that the policy has no more is decided",
    "a limit that no policy had is refused",
    "a filter's request is unmetered",
    "a filter refuses rules",
    "a policy lacks a rule set that the filter lists",
    "a sidecar ends while its state folder is full",
    "a consumer changes its tier",
    "a blocked key is denied",
    "a request comes back when Retry-After says, and is admitted",
    "the clock steps back",
    "the store loses its data",
    "the store loses its overrides",
    "a client hangs up before its verdict",
    "a callout is refused",
    "a queue is full",
    "a VM ends while requests wait in it",
    "the answer for a batch is late",
    "workers of one Envoy have different rules",
    "the store refuses some keys and decides others",
    "a billion units at once are admitted",
    "a stream's usage returns units",
    "a stream's usage is charged beyond its reserve",
    "a reserve is kept",
    "a hold is renewed",
    "a settle has no answer",
    "a settle repeats harmlessly",
    "a settle comes too late",
    "a key is denied while it is in debt",
    "a request is admitted when units have come back",
    "who reserves nothing is admitted",
    "who reserves nothing is denied",
    "a VM ends while streams live that it has let pass",
    "all slots of a key are in use",
    "a share has no slot",
    "more streams live than slots: the store has lost its data",
    "more streams live than slots: the clock has stepped forward",
    "more streams live than slots: an operator has reset them",
    "more streams live than slots: a share does not know them yet",
    "a stream from before an outage is renewed by a share",
    "a stream is renewed in another tier",
    "slots are freed again harmlessly",
    "a stream lives for longer than its slots are renewed",
    "slots of a limit that the policy has no more are freed",
    "a policy has fewer slots than are in use",
    "slots end that nobody has freed",
    "a renewal puts slots in use that the store does not have",
    "slots are freed that nobody was told of",
    "a request that waits for a slot is admitted",
    "a denial is right only because leases hold units",
    "units of a lease are spent soon after a reset",
];

/// Which of them a world reached. `idle`: units in leases were the only reason of a denial.
pub fn reached(world: &World, shown: &Shown, idle: bool) -> [bool; STATES.len()] {
    let mut sidecars = vec![Sidecar::default(); world.sidecars];
    // Those of the filter's own code and of slots are told by name.
    let of_slots = slots::reached(world, shown);
    let mut has = STATES.map(|state| shown.reached.contains(state) || of_slots.contains(state));
    has[13] =
        world.fleet && (world.events.iter()).any(|(_, event)| matches!(event, Event::Refuse(true)));
    has[14] = world.second_set.contains(&false);
    has[16] = world.tiers.windows(2).any(|pair| pair[0] != pair[1]);
    has[58] = idle;
    // Keys of limits that were blocked, and the last reset of each.
    let mut blocked = BTreeSet::new();
    let mut resets = BTreeMap::new();
    let log = shown.log.iter().filter(|one| one.from < shown.healed);
    let mut log: Vec<_> = log.collect();
    log.sort_by_key(|one| one.to);
    // What was told of each check before, and of each key last.
    let (mut told_before, mut last) = (BTreeMap::new(), BTreeMap::new());
    for Entry {
        sidecar,
        what,
        from,
        ..
    } in log
    {
        let of = &mut sidecars[*sidecar];
        match what {
            What::Asked(request) => {
                let Request { checks, said, .. } = request;
                let (is_denied, is_admitted) = (request.is_denied(), request.is_admitted());
                let by_sidecar = request.by == By::Sidecar;
                let by_share = of.is_cut && by_sidecar;
                has[0] |= request.remaining == Some(0);
                has[28] |= of.refuses && is_admitted && by_sidecar;
                has[29] |= is_admitted && checks.iter().any(|check| check.cost >= 1_000_000_000);
                has[1] |= by_share && is_admitted;
                has[2] |= by_share && is_denied;
                has[4] |= *said == Said::Unknown;
                has[5] |= request.by == By::Cache;
                let was_reset = |check: &Check| {
                    let limit = world.policies[of.version][check.limit].as_ref();
                    let longest = limit.and_then(|limit| limit.lease_ms).unwrap_or(0) * 1_000;
                    let reset = resets.get(&(check.limit, check.key));
                    reset.is_some_and(|at: &u64| (*at..*at + longest).contains(from))
                };
                let is_leased = request.by == By::Lease;
                has[6] |= is_leased;
                has[59] |= is_leased && checks.iter().any(was_reset);
                let lacks = |check: &Check| world.policies[of.version][check.limit].is_none();
                has[10] |= checks.iter().any(lacks) && (is_admitted || is_denied);
                has[11] |= *said == Said::Refused;
                let is_blocked = |one: &Check| blocked.contains(&(one.limit, one.key));
                has[17] |= is_denied && checks.iter().any(is_blocked);
                has[18] |= request.again && is_admitted;
                for check in checks.iter().filter(|check| check.most.is_some()) {
                    let last =
                        last.insert((check.limit, check.key), is_denied.then_some(Told::Nothing));
                    has[37] |= is_denied && matches!(last, Some(Some(Told::Charged(1..))));
                    has[38] |= is_admitted && matches!(last, Some(Some(Told::Returned(1..))));
                    has[39] |= check.cost == 0 && is_admitted;
                    has[40] |= check.cost == 0 && is_denied;
                }
            }
            What::Unmetered { .. } => has[12] = true,
            What::Settled(Settled {
                entry,
                limit,
                key,
                told,
                ..
            }) => {
                let taken = &shown.log[*entry];
                let is_stream = taken.request().is_some_and(|request| {
                    let mut checks = request.checks.iter();
                    checks.any(|check| check.most.is_some())
                });
                let before = told_before.insert((*entry, *limit, *key), *told);
                last.insert((*limit, *key), Some(*told));
                has[7] |= matches!(told, Told::Returned(1..));
                has[8] |= matches!(told, Told::Returned(0) | Told::Unknown);
                has[30] |= is_stream && matches!(told, Told::Returned(1..));
                has[31] |= is_stream && matches!(told, Told::Charged(1..));
                has[34] |= is_stream && *told == Told::Nothing;
                has[35] |= *told == Told::Unknown
                    && matches!(before, Some(Told::Returned(_) | Told::Charged(_)));
                has[36] |= is_stream && *told == Told::Unknown && before == Some(Told::Ended);
                let reset = resets.get(&(*limit, *key));
                has[9] |= reset.is_some_and(|at| *at > taken.to);
            }
            What::Reset { limit, key, done } => {
                if *done {
                    resets.insert((*limit, *key), *from);
                }
            }
            What::Override {
                limit, key, grant, ..
            } => {
                if *grant == Some(Grant::Blocked) {
                    blocked.insert((*limit, *key));
                }
            }
            What::Policy(version) => of.version = *version,
            What::Link(link) => {
                of.is_cut = *link == Link::Cut;
                of.refuses = *link == Link::RefusesHalf;
            }
            What::StateFull(full) => of.is_full = *full,
            What::Down => {
                has[3] |= of.is_cut;
                has[15] |= of.is_full;
            }
            What::Clock(by_ms) => has[19] |= *by_ms < 0,
            What::Lost => has[20] = true,
            What::OverridesLost => has[21] = true,
            What::Held(_) | What::Envoy | What::VmEnded | What::Up => {}
        }
    }
    has
}
