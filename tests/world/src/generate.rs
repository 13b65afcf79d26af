//! A world from a seed: which features meet in it, and when.

use super::determined;
use super::script::{
    self, Algorithm, Check, Event, Grant, KEYS, Limit, Link, Policy, Window, World,
};

/// What is known to be wrong, with the issue that turns it on: the generator leaves it out until then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open {
    /// A receipt is given back to a window from which nothing was taken, or to what others have taken since the clock has
    /// stepped back behind it: holds.
    pub e2: bool,
    /// A token bucket's receipt returns what has drained, after a lowered quota: holds.
    pub e3: bool,
    /// Sidecars start and die beside an outage: the issue on fleets.
    pub d2: bool,
}

/// Features that can meet.
pub const FEATURES: [&str; 13] = [
    "policies",
    "overrides",
    "resets",
    "receipts",
    "leases",
    "filters",
    "requests' quotas",
    "outages",
    "lost answers",
    "slow links",
    "clock steps",
    "restarts",
    "lost data",
];

struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        determined::next(&mut self.0) % most.max(1)
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The features of a world, by their number in [`FEATURES`].
pub fn features(world: &World) -> Vec<usize> {
    let mut has = [false; FEATURES.len()];
    has[0] = world.policies.len() > 1;
    has[4] = world
        .policies
        .iter()
        .flatten()
        .flatten()
        .any(|limit| limit.leases);
    for (_, event) in &world.events {
        match event {
            Event::Override { .. } => has[1] = true,
            Event::Reset { .. } => has[2] = true,
            Event::GiveBack { .. } => has[3] = true,
            Event::Ask { filter, checks, .. } => {
                has[5] |= *filter;
                has[6] |= checks.iter().any(|check| check.quota.is_some());
            }
            Event::Link {
                link: Link::Cut, ..
            } => has[7] = true,
            Event::Link {
                link: Link::LosesAnswers,
                ..
            } => has[8] = true,
            Event::Link {
                link: Link::Slow(..),
                ..
            } => has[9] = true,
            Event::Clock { .. } => has[10] = true,
            Event::Restart { .. } | Event::Kill { .. } => has[11] = true,
            Event::LoseData => has[12] = true,
            _ => {}
        }
    }
    (0..FEATURES.len()).filter(|number| has[*number]).collect()
}

fn limit(chance: &mut Chance, leases: bool, requests: bool) -> Limit {
    let algorithm = match chance.below(10) {
        0 | 1 => Algorithm::Log,
        2 | 3 => Algorithm::Sliding(chance.of(&[100, 500, 1_000])),
        4 | 5 => Algorithm::Fixed,
        6 => Algorithm::Day(chance.of(&["UTC", "Asia/Tokyo"])),
        _ => Algorithm::Token(chance.of(&[1, 5, 20, 300, 3_000])),
    };
    let quota = chance.of(&[1, 3, 10, 50, 200]);
    let mut windows = vec![Window {
        quota,
        per_ms: chance.of(&[2_000, 5_000, 10_000, 30_000]),
    }];
    if let Algorithm::Day(_) = algorithm {
        windows[0].per_ms = 86_400_000;
        windows[0].quota *= 5;
    } else if chance.one_in(4) && !matches!(algorithm, Algorithm::Token(_)) {
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
    Limit {
        algorithm,
        windows,
        requests_up_to,
        leases: leases
            && requests_up_to.is_none()
            && !matches!(algorithm, Algorithm::Log)
            && chance.one_in(2),
        blocked: chance
            .one_in(12)
            .then(|| chance.below(KEYS as u64) as usize),
    }
}

/// Without what a sidecar refuses: leases of a limit that has no room for them.
fn valid(limit: &mut Limit, folder: &std::path::Path) {
    let path = folder.join("limit.yaml");
    std::fs::write(&path, script::yaml(&vec![Some(limit.clone())], false)).expect("a file");
    if sluicegate::policy::PolicySource::open(&path).is_err() {
        limit.leases = false;
    }
}

/// The same limit with another policy.
fn changed(
    chance: &mut Chance,
    before: &Limit,
    leases: bool,
    receipts: bool,
    open: Open,
) -> Option<Limit> {
    let mut after = before.clone();
    let tokens = matches!(before.algorithm, Algorithm::Token(_));
    match chance.below(if receipts && tokens && !open.e3 { 4 } else { 8 }) {
        0 => return None,
        1 if receipts && !open.e2 => after.blocked = None,
        1 => after = limit(chance, leases, before.requests_up_to.is_some()),
        2 => after.leases = false,
        3 => after.blocked = None,
        4 | 5 => {
            for window in &mut after.windows {
                window.quota =
                    (window.quota * chance.of(&[1, 2, 5, 10])).div_ceil(chance.of(&[1, 2, 5, 10]));
            }
            after.requests_up_to = after.requests_up_to.map(|_| after.windows[0].quota * 2);
        }
        _ => {
            if let Algorithm::Token(burst) = &mut after.algorithm {
                *burst = (*burst * chance.of(&[1, 2, 50])).div_ceil(chance.of(&[1, 3, 50]));
            } else if let Algorithm::Sliding(precision) = &mut after.algorithm {
                *precision = chance.of(&[100, 250, 1_000]);
            }
        }
    }
    Some(after)
}

/// The world of a seed.
pub fn generate(seed: u64, open: Open) -> World {
    let mut chance = Chance(seed.wrapping_mul(0x5851_F42D_4C95_7F2D));
    let mut on = [false; FEATURES.len()];
    on.iter_mut().for_each(|on| *on = chance.one_in(2));
    let [
        policies,
        overrides,
        resets,
        receipts,
        leases,
        filters,
        requests,
        outages,
        lost_answers,
        slow,
        clock,
        restarts,
        lost_data,
    ] = on;
    let embedded = chance.one_in(10);
    let sidecars = if embedded {
        1
    } else {
        chance.between(1, 3) as usize
    };
    let limits = 3;
    let first: Policy = (0..limits)
        .map(|_| Some(limit(&mut chance, leases && !embedded, requests)))
        .collect();
    let mut all = vec![first];
    if policies {
        for _ in 0..chance.between(1, 3) {
            let mut next = all[chance.below(all.len() as u64) as usize].clone();
            let which = chance.below(limits) as usize;
            next[which] = match &next[which] {
                Some(before) => changed(&mut chance, before, leases && !embedded, receipts, open),
                None => all[0][which].clone(),
            };
            all.push(next);
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    for limit in all
        .iter_mut()
        .flatten()
        .flatten()
        .filter(|limit| limit.leases)
    {
        valid(limit, folder.path());
    }
    // A few seconds or a minute before an edge of every window, of the day in one of the zones too.
    let midnight = chance.of(&[1_790_035_200, 1_790_089_200]);
    let start_us = midnight * 1_000_000 - chance.of(&[3, 8, 25, 70]) * 1_000_000;
    let length_ms = chance.of(&[20_000, 60_000, 150_000]);
    let mut events: Vec<(u64, Event)> = Vec::new();
    let at = |chance: &mut Chance| chance.between(600, length_ms);
    let one = |chance: &mut Chance| chance.below(sidecars as u64) as usize;
    let (busy_limit, busy_key) = (
        chance.below(limits) as usize,
        chance.below(KEYS as u64) as usize,
    );
    for _ in 0..chance.between(10, 60) {
        let calm = chance.one_in(3);
        let (mut limit, mut key) = (
            chance.below(limits) as usize,
            chance.below(KEYS as u64) as usize,
        );
        if chance.one_in(2) {
            (limit, key) = (busy_limit, busy_key);
        }
        let of = all[0][limit].as_ref().expect("the first has all");
        let most = match of.algorithm {
            Algorithm::Token(burst) => burst,
            _ => of.windows[0].quota,
        };
        let cost = chance.of(&[1, 1, 1, 2, most.div_ceil(5), most]).min(most);
        let quota = (requests && of.requests_up_to.is_some() && chance.one_in(2))
            .then(|| chance.between(1, of.windows[0].quota * 2));
        let mut checks = vec![Check {
            limit,
            key,
            cost,
            quota,
        }];
        if chance.one_in(6) {
            checks.push(Check {
                limit: (limit + 1) % limits as usize,
                key: chance.below(KEYS as u64) as usize,
                cost: 1,
                quota: None,
            });
        }
        let tokens = checks.iter().any(|check| {
            all.iter()
                .flat_map(|policy| &policy[check.limit])
                .any(|of| matches!(of.algorithm, Algorithm::Token(_)))
        });
        let receipt = receipts
            && chance.one_in(3)
            && (open.e3 || !tokens || !overrides && !policies && !requests);
        let (times, every_ms) = if calm {
            (1, 0)
        } else {
            (
                chance.of(&[5, 60, 200, 500]),
                chance.of(&[0, 1, 10, 50, 200]),
            )
        };
        let event = Event::Ask {
            sidecar: one(&mut chance),
            filter: filters && chance.one_in(2),
            checks,
            peek: chance.one_in(15),
            receipt,
            times,
            every_ms,
            again: calm,
        };
        events.push((at(&mut chance), event));
    }
    let mut some =
        |chance: &mut Chance, on: bool, most: u64, make: &mut dyn FnMut(&mut Chance) -> Event| {
            if on {
                for _ in 0..chance.between(1, most) {
                    let at_ms = chance.between(600, length_ms);
                    events.push((at_ms, make(chance)));
                }
            }
        };
    some(&mut chance, receipts, 10, &mut |chance| Event::GiveBack {
        sidecar: one(chance),
        back: chance.below(4) as usize,
        units: chance.of(&[1, 2, 1_000]),
    });
    let busy_or_any = |chance: &mut Chance| {
        if chance.one_in(3) {
            (
                chance.below(limits) as usize,
                chance.below(KEYS as u64) as usize,
            )
        } else {
            (busy_limit, busy_key)
        }
    };
    some(&mut chance, overrides, 6, &mut |chance| {
        let (limit, key) = busy_or_any(chance);
        let most = all[0][limit].as_ref().map_or(1, |of| of.windows[0].quota);
        let grant = match chance.below(6) {
            0 => Grant::Unlimited,
            1 | 2 => Grant::Blocked,
            _ => Grant::Quota((most * chance.of(&[1, 2, 5])).div_ceil(chance.of(&[1, 2, 10]))),
        };
        Event::Override {
            sidecar: one(chance),
            limit,
            key,
            grant,
            for_ms: (!chance.one_in(3)).then(|| chance.of(&[1_500, 4_000, 10_000, 30_000])),
        }
    });
    some(&mut chance, overrides, 2, &mut |chance| {
        let (limit, key) = busy_or_any(chance);
        Event::RemoveOverride {
            sidecar: one(chance),
            limit,
            key,
        }
    });
    some(&mut chance, resets, 2, &mut |chance| {
        let (limit, key) = busy_or_any(chance);
        Event::Reset {
            sidecar: one(chance),
            limit,
            key,
        }
    });
    let forward_only = receipts && !open.e2;
    some(&mut chance, clock, 2, &mut |chance| Event::Clock {
        by_ms: if forward_only {
            chance.of(&[500, 3_000, 12_000, 45_000])
        } else {
            chance.of(&[500, 3_000, 12_000, 45_000, -400, -3_000, -12_000, -45_000])
        },
    });
    some(&mut chance, lost_data && !embedded, 1, &mut |_| {
        Event::LoseData
    });
    let mut faulty = Vec::new();
    for (on, link) in [
        (outages, Link::Cut),
        (lost_answers, Link::LosesAnswers),
        (slow, Link::Slow(60, 70)),
        (slow, Link::Slow(5, 60)),
    ] {
        if on && !embedded {
            for _ in 0..chance.between(1, 4) {
                let begins = at(&mut chance);
                let lasts = chance.of(&[200, 900, 3_000, 12_000]);
                let whole = chance.one_in(3);
                let first = one(&mut chance);
                // The list of sidecars is new: they do not know each other yet.
                let new_list = begins < 8_000
                    || events.iter().any(|(at_ms, event)| {
                        let lost =
                            matches!(event, Event::LoseData | Event::Clock { by_ms: 3_000.. });
                        lost && *at_ms < begins + lasts && *at_ms + 12_000 > begins
                    });
                if new_list && !open.d2 {
                    continue;
                }
                faulty.push((begins, begins + lasts));
                for sidecar in (0..sidecars).filter(|sidecar| whole || *sidecar == first) {
                    events.push((begins, Event::Link { sidecar, link }));
                    events.push((
                        begins + lasts,
                        Event::Link {
                            sidecar,
                            link: Link::Good,
                        },
                    ));
                }
            }
        }
    }
    if restarts && !embedded {
        for _ in 0..chance.between(1, 2) {
            let at_ms = at(&mut chance);
            let near = faulty
                .iter()
                .any(|(from, to)| at_ms + 20_000 > *from && at_ms < *to + 10_000);
            if !near || open.d2 {
                let sidecar = one(&mut chance);
                let event = if chance.one_in(2) {
                    Event::Restart { sidecar }
                } else {
                    Event::Kill {
                        sidecar,
                        for_ms: chance.between(100, 8_000),
                    }
                };
                // Somebody asks it as soon as it is there.
                let away_ms = if let Event::Kill { for_ms, .. } = event {
                    for_ms
                } else {
                    0
                };
                let check = Check {
                    limit: busy_limit,
                    key: busy_key,
                    cost: 1,
                    quota: None,
                };
                let asks = Event::Ask {
                    sidecar,
                    filter: false,
                    checks: vec![check],
                    peek: false,
                    receipt: false,
                    times: 60,
                    every_ms: 5,
                    again: false,
                };
                events.push((at_ms + away_ms, asks));
                events.push((at_ms, event));
            }
        }
    }
    if all.len() > 1 {
        for flip in 0..chance.between(1, 3) * all.len() as u64 {
            let version = (flip as usize + 1) % all.len();
            let at_ms = at(&mut chance);
            for sidecar in 0..sidecars {
                // One after the other, as a rollout is.
                events.push((
                    at_ms + sidecar as u64 * chance.of(&[0, 300, 4_000]),
                    Event::Policy { sidecar, version },
                ));
            }
        }
    }
    events.sort_by_key(|(at_ms, _)| *at_ms);
    let latency_ms = chance.of(&[(0, 0), (1, 1), (3, 2), (20, 15)]);
    World {
        seed,
        start_us,
        sidecars,
        embedded,
        latency_ms,
        policies: all,
        events,
    }
}
