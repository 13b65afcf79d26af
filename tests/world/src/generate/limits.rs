//! Limits of a world's policies, and how they change.

use sluicegate_engine::MAX_UNITS;

use super::Chance;
use crate::script::{self, Algorithm, Limit, Policy, Window};

/// A limit, of tokens if need be; `blocked` is a key that its file may block.
pub fn limit(
    chance: &mut Chance,
    leases: bool,
    requests: bool,
    blocked: usize,
    tokens: bool,
) -> Limit {
    let algorithm = match if tokens { 9 } else { chance.below(10) } {
        0 | 1 => Algorithm::Log,
        2 | 3 => Algorithm::Sliding(chance.of(&[100, 500, 1_000])),
        4 | 5 => Algorithm::Fixed,
        6 => Algorithm::Day(chance.of(&["UTC", "Asia/Tokyo"])),
        _ => Algorithm::Token(chance.of(&[1, 20, 300, 300, 3_000])),
    };
    let quota = match algorithm {
        // What flows back is little beside the burst.
        Algorithm::Token(_) => chance.of(&[1, 3, 10, 50]),
        // There is room for leases.
        _ if leases && chance.one_in(2) => 800,
        _ => chance.of(&[1, 3, 10, 50, 200, 800]),
    };
    let mut windows = vec![Window {
        quota,
        per_ms: chance.of(&[1_000, 2_000, 5_000, 10_000, 30_000]),
    }];
    if let Algorithm::Day(_) = algorithm {
        windows[0].per_ms = 86_400_000;
        windows[0].quota *= 5;
    } else if chance.one_in(5) && !matches!(algorithm, Algorithm::Token(_)) {
        let more = Window {
            quota: quota * chance.between(2, 4),
            per_ms: windows[0].per_ms * 4,
        };
        windows.push(more);
    }
    let may = requests
        && windows.len() == 1
        && !matches!(algorithm, Algorithm::Token(_) | Algorithm::Day(_));
    let requests_up_to = (may && chance.one_in(2)).then_some(windows[0].quota * 2);
    let may = leases && requests_up_to.is_none() && !matches!(algorithm, Algorithm::Log);
    let mut limit = Limit {
        algorithm,
        windows,
        requests_up_to,
        lease_ms: (may && !chance.one_in(3)).then(|| chance.of(&[200, 500, 2_000])),
        blocked: chance.one_in(10).then_some(blocked),
    };
    valid(&mut limit);
    limit
}

/// Without what a sidecar refuses: leases of a limit that has no room for them.
fn valid(limit: &mut Limit) {
    if limit.lease_ms.is_none() {
        return;
    }
    if !is_valid(&vec![Some(limit.clone())]) {
        limit.lease_ms = None;
    }
}

fn is_valid(policy: &Policy) -> bool {
    let file = tempfile::Builder::new()
        .suffix(".yaml")
        .tempfile()
        .expect("a file");
    std::fs::write(file.path(), script::yaml(policy, false)).expect("a file");
    sluicegate::policy::PolicySource::open(file.path(), None).is_ok()
}

/// The units of a limit, all of them.
fn units(limit: &mut Limit) -> impl Iterator<Item = &mut u64> {
    let burst = match &mut limit.algorithm {
        Algorithm::Token(burst) => Some(burst),
        _ => None,
    };
    let quotas = limit.windows.iter_mut().map(|window| &mut window.quota);
    quotas.chain(burst).chain(&mut limit.requests_up_to)
}

/// Multiplies all units of a world, so that the largest is the largest that there may be. With token buckets by a power of ten: their
/// rates have to be round, and those that are not count less than what shares may owe.
pub fn enlarge(policies: &mut Vec<Policy>) {
    let mut limits = policies.iter().flatten().flatten();
    let has_tokens = limits.any(|limit| matches!(limit.algorithm, Algorithm::Token(_)));
    let mut next = policies.clone();
    let limits = next.iter_mut().flatten().flatten();
    let largest = limits.flat_map(units).max().map_or(1, |most| *most);
    let most = MAX_UNITS / largest;
    let times = if has_tokens {
        10_u64.pow(most.ilog10())
    } else {
        most
    };
    let limits = next.iter_mut().flatten().flatten();
    limits.flat_map(units).for_each(|units| *units *= times);
    if next.iter().all(is_valid) {
        *policies = next;
    }
}

/// The most that a key of a limit may take at once.
pub fn at_once(limit: &Limit) -> u64 {
    match limit.algorithm {
        Algorithm::Token(burst) => burst,
        _ => limit.windows[0].quota,
    }
}

/// Has a limit count slots in all policies, where they do not have another algorithm of it.
pub fn count_slots(chance: &mut Chance, policies: &mut [Policy], number: usize) {
    let mut of = policies.iter().filter_map(|policy| policy[number].clone());
    let Some(first) = of.next() else {
        return;
    };
    let per_ms = chance.of(&[3_000, 3_000, 4_000, 6_000]);
    let window = Window {
        quota: chance.of(&[1, 2, 3, 5, 8, 20]),
        per_ms,
    };
    let longest_ms = chance.of(&[per_ms, 6_000, 86_400_000, 86_400_000]);
    for of in policies
        .iter_mut()
        .filter_map(|policy| policy[number].as_mut())
    {
        let is_same = *of == first;
        if !is_same && chance.one_in(4) {
            continue;
        }
        let mut window = window;
        if !is_same {
            window.quota = (window.quota * chance.of(&[1, 2, 3])).div_ceil(chance.of(&[1, 2, 4]));
            window.per_ms = chance.of(&[per_ms, per_ms, 3_000, 6_000]);
        }
        *of = Limit {
            algorithm: Algorithm::Slots(longest_ms.max(window.per_ms)),
            windows: vec![window],
            requests_up_to: None,
            lease_ms: None,
            blocked: of.blocked,
        };
    }
}

fn may_have_two(limit: &Limit) -> bool {
    let one = matches!(limit.algorithm, Algorithm::Token(_) | Algorithm::Day(_));
    !one && limit.requests_up_to.is_none()
}

/// The same limit in the next policy.
pub fn changed(chance: &mut Chance, before: &Limit, leases: bool) -> Option<Limit> {
    let mut after = before.clone();
    match chance.below(10) {
        0 => return None,
        1 => after = limit(chance, leases, before.requests_up_to.is_some(), 0, false),
        2 => after.lease_ms = None,
        3 => after.blocked = None,
        which => {
            if which < 8 {
                for window in &mut after.windows {
                    window.quota = (window.quota * chance.of(&[1, 2, 5, 10]))
                        .div_ceil(chance.of(&[1, 2, 5, 10]));
                }
                after.requests_up_to = after.requests_up_to.map(|_| after.windows[0].quota * 2);
            }
            if which > 8 && may_have_two(&after) {
                if after.windows.len() > 1 {
                    after.windows.pop();
                } else {
                    let Window { quota, per_ms } = after.windows[0];
                    let per_ms = per_ms * 4;
                    after.windows.push(Window { quota, per_ms });
                }
            } else if let Algorithm::Token(burst) = &mut after.algorithm {
                *burst = (*burst * chance.of(&[1, 2, 50])).div_ceil(chance.of(&[1, 3, 50]));
            } else if which > 7
                && let Algorithm::Sliding(precision) = &mut after.algorithm
            {
                *precision = chance.of(&[100, 250, 1_000]);
            }
        }
    }
    valid(&mut after);
    Some(after)
}
