//! The states of slots that worlds have to reach: mostly, by how much more streams live than there are slots, and after what.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate::store::simulated::Call;
use sluicegate_engine::{Done, Guard};

use super::run::{Entry, Held, Said, Shown, Sign, What};
use super::script::{Algorithm, KEYS, Limit, Link, World};

/// A stream that holds slots: since when, until when, of how many.
struct Stream {
    of: (usize, usize),
    from: u64,
    to: u64,
    units: u64,
}

/// What happened lately: when.
#[derive(Default)]
struct Lately {
    lost: Option<u64>,
    stepped: Option<u64>,
    reset: Option<u64>,
}

/// How many slots a limit has, how long they last in microseconds, and how long they are renewed at most.
fn slots_of(limit: Option<&Limit>) -> Option<(u64, u64, u64)> {
    let limit = limit?;
    let Algorithm::Slots(longest_ms) = limit.algorithm else {
        return None;
    };
    let window = limit.windows[0];
    Some((window.quota, window.per_ms * 1_000, longest_ms * 1_000))
}

/// Which of them a world reached.
pub fn reached(world: &World, shown: &Shown) -> BTreeSet<&'static str> {
    let mut has = BTreeSet::new();
    if !world.has_slots() {
        return has;
    }
    by_calls(shown, &mut has);
    let streams = streams(shown);
    let mut log: Vec<_> = shown
        .log
        .iter()
        .filter(|one| one.from < shown.healed)
        .collect();
    log.sort_by_key(|one| one.to);
    let (mut cut, mut versions) = (vec![None; world.sidecars], vec![0; world.sidecars]);
    let mut lately = Lately::default();
    let mut freed = BTreeSet::new();
    for Entry {
        sidecar,
        what,
        from,
        to,
    } in log
    {
        let policy = |version: usize| &world.policies[version];
        let living = |of: (usize, usize), at: u64| {
            let live = streams
                .values()
                .filter(move |one| one.of == of && (one.from..one.to).contains(&at));
            live.map(|one| one.units).sum::<u64>()
        };
        match what {
            What::Asked(request) => {
                let [check] = &request.checks[..] else {
                    continue;
                };
                let limit = policy(versions[*sidecar])[check.limit].as_ref();
                let Some((quota, lasts, _)) = slots_of(limit) else {
                    continue;
                };
                if request.is_denied() && check.cost <= quota {
                    has.insert("all slots of a key are in use");
                }
                if cut[*sidecar].is_some()
                    && quota < world.sidecars as u64
                    && request.said == Said::Unknown
                {
                    has.insert("a share has no slot");
                }
                let now_live = living((check.limit, check.key), *to);
                if !request.is_admitted() || now_live <= quota {
                    continue;
                }
                let soon = |at: Option<u64>| at.is_some_and(|at| *from < at + lasts);
                let reasons = [
                    (
                        soon(lately.lost),
                        "more streams live than slots: the store has lost its data",
                    ),
                    (
                        soon(lately.stepped),
                        "more streams live than slots: the clock has stepped forward",
                    ),
                    (
                        soon(lately.reset),
                        "more streams live than slots: an operator has reset them",
                    ),
                    (
                        cut[*sidecar].is_some(),
                        "more streams live than slots: a share does not know them yet",
                    ),
                ];
                has.extend(
                    reasons
                        .iter()
                        .find(|(is_it, _)| *is_it)
                        .map(|(_, state)| *state),
                );
            }
            What::Held(Held {
                entry,
                limit,
                key,
                sign,
            }) => {
                let is_before = |at: Option<u64>| at.is_some_and(|at| shown.log[*entry].to < at);
                let stream = streams.get(entry);
                match sign {
                    Sign::Renewed | Sign::RenewalLost if is_before(cut[*sidecar]) => {
                        has.insert("a stream from before an outage is renewed by a share");
                    }
                    Sign::Renewed if stream.is_some_and(|one| one.of != (*limit, *key)) => {
                        has.insert("a stream is renewed in another tier");
                    }
                    Sign::Freed(0) if freed.contains(entry) => {
                        has.insert("slots are freed again harmlessly");
                    }
                    Sign::Freed(units) => {
                        freed.insert(*entry);
                        let limits = world
                            .policies
                            .iter()
                            .filter_map(|policy| slots_of(policy[*limit].as_ref()));
                        let longest = limits.map(|of| of.2).min().unwrap_or(u64::MAX);
                        if *units == 0 && stream.is_some_and(|one| one.to - one.from > longest) {
                            has.insert("a stream lives for longer than its slots are renewed");
                        }
                        if *units > 0 && policy(versions[*sidecar])[*limit].is_none() {
                            has.insert("slots of a limit that the policy has no more are freed");
                        }
                    }
                    _ => {}
                }
            }
            What::Policy(version) => {
                versions[*sidecar] = *version;
                for (number, limit) in policy(*version).iter().enumerate() {
                    let Some((quota, ..)) = slots_of(limit.as_ref()) else {
                        continue;
                    };
                    if (0..KEYS).any(|key| living((number, key), *to) > quota) {
                        has.insert("a policy has fewer slots than are in use");
                    }
                }
            }
            What::Link(link) => {
                let is_cut = *link != Link::Good;
                cut[*sidecar] = if is_cut {
                    cut[*sidecar].or(Some(*from))
                } else {
                    None
                };
            }
            What::Lost => lately.lost = Some(*to),
            What::Reset { .. } => lately.reset = Some(*to),
            What::Clock(by_ms) if *by_ms > 0 => lately.stepped = Some(*to),
            _ => {}
        }
    }
    has
}

/// Those whose filter has said when they ended.
fn streams(shown: &Shown) -> BTreeMap<usize, Stream> {
    let ended = shown.log.iter().filter_map(|one| match one.what {
        What::Held(Held {
            entry,
            limit,
            key,
            sign: Sign::Ended,
        }) => Some((entry, (limit, key), one.from)),
        _ => None,
    });
    let stream = |(entry, of, to): (usize, (usize, usize), u64)| {
        let taken = &shown.log[entry];
        let request = taken.request()?;
        let checks = request
            .checks
            .iter()
            .filter(|check| (check.limit, check.key) == of);
        let (from, units) = (taken.to, checks.map(|check| check.cost).sum());
        Some((
            entry,
            Stream {
                of,
                from,
                to,
                units,
            },
        ))
    };
    ended.filter_map(stream).collect()
}

/// What only the store's calls show.
fn by_calls(shown: &Shown, has: &mut BTreeSet<&'static str>) {
    for call in &shown.calls {
        match call {
            Call::Decide(_, _, outcomes) if outcomes.iter().any(|outcome| outcome.ended > 0) => {
                has.insert("slots end that nobody has freed");
            }
            Call::Settle(_, settlements, done) => {
                for (one, done) in settlements.each.iter().zip(done) {
                    match (&one.guard, done) {
                        (Guard::Renew(_), Done::Added(_)) => {
                            has.insert("a renewal puts slots in use that the store does not have");
                        }
                        (Guard::Free(id), Done::Returned(1..)) => {
                            let digits: String =
                                id.0.iter().map(|byte| format!("{byte:02x}")).collect();
                            if !shown.receipts.contains(&digits) {
                                has.insert("slots are freed that nobody was told of");
                            }
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}
