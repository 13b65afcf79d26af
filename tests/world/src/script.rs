//! What happens in a world: the policies that it knows, and events with their times. Printed, it can be read by a person.

use std::collections::BTreeMap;
use std::fmt;

/// The last limit of a policy, [`RENAMED`], is what its rules name in place of those that are missing.
pub use sluicegate_history::{Algorithm, Check, Grant, Limit, Link, Policy, Window};
use sluicegate_rules::Hasher;

use super::settling::Settling;

/// How many limits requests ask for.
pub const LIMITS: usize = 3;
/// The number of the limit that another one may be renamed to.
pub const RENAMED: usize = LIMITS;
/// What requests of consumers ask for: which limit counts them depends on the tier that a policy gives them.
pub const CONSUMERS: usize = RENAMED + 1;

/// What becomes of the callouts of an Envoy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    #[default]
    Good,
    /// They reach no sidecar.
    Lost,
    /// Answers need so many milliseconds more.
    Late(u64),
    /// Envoy does not send them.
    Refused,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requests, `times` of them, `every_ms`: at a filter, or directly.
    Ask {
        sidecar: usize,
        filter: bool,
        checks: Vec<Check>,
        peek: bool,
        receipt: bool,
        times: u64,
        every_ms: u64,
        /// If it is denied: ask again when Retry-After says.
        again: bool,
    },
    /// Returns units of a receipt that the sidecar has, counted from the newest.
    GiveBack {
        sidecar: usize,
        back: usize,
        units: u64,
    },
    Policy {
        sidecar: usize,
        version: usize,
    },
    Override {
        sidecar: usize,
        limit: usize,
        key: usize,
        grant: Grant,
        for_ms: Option<u64>,
    },
    RemoveOverride {
        sidecar: usize,
        limit: usize,
        key: usize,
    },
    Reset {
        sidecar: usize,
        limit: usize,
        key: usize,
    },
    Link {
        sidecar: usize,
        link: Link,
    },
    /// The store's clock, or for the embedded store the host's, is set.
    Clock {
        by_ms: i64,
    },
    LoseData,
    /// The store evicts the list of sidecars.
    LoseSidecars,
    /// The store loses the overrides alone.
    LoseOverrides,
    /// From now on the filter of the fleet refuses rules that it does not have, or no longer does.
    Refuse(bool),
    /// What becomes of the callouts of the Envoy beside a sidecar, or of that of the fleet.
    Callouts {
        sidecar: usize,
        way: Way,
    },
    /// The VM of one of its workers ends and starts again.
    EndVm {
        sidecar: usize,
        worker: usize,
    },
    /// The state folder of a sidecar cannot be written, or can again.
    StateFull {
        sidecar: usize,
        full: bool,
    },
    /// Drains and starts again.
    Restart {
        sidecar: usize,
    },
    /// Dies, and starts again after this time.
    Kill {
        sidecar: usize,
        for_ms: u64,
    },
}

/// A world. The same one always goes the same way.
#[derive(Clone, Debug)]
pub struct World {
    pub seed: u64,
    /// The wall clock when it begins.
    pub start_us: u64,
    pub sidecars: usize,
    /// One sidecar with the embedded store.
    pub embedded: bool,
    /// One Envoy in front of all sidecars. Otherwise each sidecar has an Envoy beside it.
    pub fleet: bool,
    /// How long the network takes there, and back.
    pub latency_ms: (u64, u64),
    pub policies: Vec<Policy>,
    /// By policy: which consumers have the first of its limits, and not the last; none if the world has no consumers.
    pub tiers: Vec<[bool; KEYS]>,
    /// By policy: whether it has the second rule set; none if the filter takes all requests to be for the first.
    pub second_set: Vec<bool>,
    /// Sidecars have a state folder.
    pub keeps_state: bool,
    /// How rules settle what requests have used, if some do.
    pub settles: Option<Settling>,
    /// The client of one in so many requests hangs up.
    pub hang_ups: Option<u32>,
    /// With milliseconds since the begin; in order of time.
    pub events: Vec<(u64, Event)>,
}

/// The number of keys, and of consumers: these have the numbers that follow.
pub const KEYS: usize = 4;

/// The rule sets of a policy; a filter may choose by the route.
pub const SETS: [&str; 2] = ["default", "second"];

/// The limit and the key of a check, as a program writes them.
pub fn names(limit: usize, key: usize) -> (String, String) {
    if limit == CONSUMERS {
        ("c".to_owned(), format!("@consumer=k{key}"))
    } else {
        (format!("l{limit}"), format!("x=k{key}"))
    }
}

/// The limit with this name.
pub fn number_of(name: &str) -> usize {
    match name.strip_prefix('l') {
        Some(number) => number.parse().expect("a limit's number"),
        None => CONSUMERS,
    }
}

/// The secret of filters' keys.
pub const PEPPER: &str = "of worlds";

impl World {
    /// Whether some limits count slots.
    pub fn has_slots(&self) -> bool {
        let mut limits = self.policies.iter().flatten().flatten();
        limits.any(|limit| matches!(limit.algorithm, Algorithm::Slots(_)))
    }

    /// Whether requests that have passed live on, and end.
    pub fn has_streams(&self) -> bool {
        self.settles.is_some() || self.has_slots()
    }

    /// The limit and key by which a policy counts a check.
    pub fn counted(&self, version: usize, limit: usize, key: usize) -> (usize, usize) {
        if limit != CONSUMERS {
            return (limit, key);
        }
        let (first, last) = self.of_tiers(version);
        let has_first = self.tiers[version][key];
        (if has_first { first } else { last }, KEYS + key)
    }

    /// The same of several checks.
    pub fn counted_of(&self, version: usize, checks: &[Check]) -> Vec<Check> {
        let counted = checks.iter().map(|check| {
            let (limit, key) = self.counted(version, check.limit, check.key);
            Check {
                limit,
                key,
                ..*check
            }
        });
        counted.collect()
    }

    /// By the key of a consumer: the limits that count it, each by a policy.
    pub fn tiers_of_consumers(&self) -> BTreeMap<usize, Vec<usize>> {
        let versions = 0..self.tiers.len();
        let of = |key| {
            versions
                .clone()
                .map(move |version| self.counted(version, CONSUMERS, key).0)
        };
        (0..KEYS)
            .map(|key| (KEYS + key, of(key).collect()))
            .collect()
    }

    fn of_tiers(&self, version: usize) -> (usize, usize) {
        let policy = &self.policies[version];
        let mut has = (0..policy.len()).filter(|limit| policy[*limit].is_some());
        let first = has.next().expect("a policy has limits");
        (first, has.next_back().unwrap_or(first))
    }

    /// The policy's file.
    pub fn yaml(&self, version: usize) -> String {
        let mut text = yaml(&self.policies[version], self.embedded);
        let mut sets = String::new();
        let many = 1 + usize::from(self.second_set.get(version) == Some(&true));
        for (set, name) in SETS.iter().enumerate().take(many) {
            sets += &format!("  {name}:\n    rules:\n");
            sets += &self.rules(version, set);
        }
        if let Some(has_first) = self.tiers.get(version) {
            let (first, last) = self.of_tiers(version);
            let hasher = Hasher::new(PEPPER);
            let hash = |key| hasher.of_header(format!("k{key}").as_bytes());
            let keys = (0..KEYS).map(|key| format!("{:?}: k{key}", hash(key)));
            let own = (0..KEYS).filter(|key| has_first[*key]);
            let own: String = own.map(|key| format!("k{key}: l{first}, ")).collect();
            text += &format!(
                "consumers:\n  c:\n    pepper: \"{}\"\n    keys: {{ {} }}\n    limits: {{ {own}default: l{last} }}\n",
                hasher.pepper_digest(),
                keys.collect::<Vec<_>>().join(", ")
            );
        }
        text + "rules:\n" + &sets
    }

    /// The set of a request by its first check.
    pub fn set_of(&self, checks: &[Check]) -> usize {
        let of = checks.first().map_or(0, |check| check.limit % 2);
        if self.second_set.is_empty() { 0 } else { of }
    }

    /// The limit that the rules of a policy name for one of those that requests ask for.
    fn named(&self, version: usize, asked: usize) -> Option<(usize, &Limit)> {
        let of = |limit: usize| Some((limit, self.policies[version].get(limit)?.as_ref()?));
        of(asked).or_else(|| of(RENAMED))
    }

    /// How the rule for a limit that requests ask for settles, if it does.
    fn settled(&self, asked: usize) -> Option<&Settling> {
        let settles = self.settles.as_ref();
        settles.filter(|settles| settles.asked.contains(&asked))
    }

    /// What the rules of a policy ask for in the place of these checks.
    pub fn asks(&self, version: usize, checks: &[Check]) -> Vec<Check> {
        let asks = |check: &Check| {
            let check = &match self.settled(check.limit) {
                Some(settles) => Check {
                    cost: Settling::reserved(check.cost),
                    ..check.reserves(settles.most)
                },
                None => *check,
            };
            if check.limit == CONSUMERS {
                return self.tiers.get(version).map(|_| *check);
            }
            let (limit, of) = self.named(version, check.limit)?;
            let quota = check.quota.filter(|_| of.requests_up_to.is_some());
            Some(Check {
                limit,
                quota,
                ..*check
            })
        };
        checks.iter().filter_map(asks).collect()
    }

    /// The policy by whose rules these limits were asked for: of a request that has waited for the first rules of a VM.
    pub fn asked_by(&self, limits: &[usize], checks: &[Check]) -> Option<usize> {
        let is_it = |version: &usize| {
            let asked = self.asks(*version, checks);
            asked.iter().map(|check| &check.limit).eq(limits)
        };
        (0..self.policies.len()).find(is_it)
    }

    /// A rule for each limit: a request names the limits that it asks for, its key, and what it costs.
    fn rules(&self, version: usize, set: usize) -> String {
        let rule = |asked: usize, check: &str| {
            let cost = match self.settled(asked) {
                Some(settles) => settles.yaml(asked),
                None => format!("{{ header: u{asked}, max: 2147483648, trusted: true }}"),
            };
            format!(
                "      - {{ name: s{set}r{asked}, when_unavailable: deny, match: {{ headers: [{{ name: u{asked}, present: true }}] }}, \
                 checks: [{{ {check}, cost: {cost} }}] }}\n"
            )
        };
        let mut rules = String::new();
        for asked in 0..LIMITS {
            if let Some((limit, of)) = self.named(version, asked) {
                let mut check = format!("limit: l{limit}, key: [{{ header: x, plain: true }}]");
                if of.requests_up_to.is_some() {
                    check += &format!(", quota: {{ jwt: {{ payload: w, claim: q{asked} }} }}");
                }
                rules += &rule(asked, &check);
            }
        }
        if self.tiers.get(version).is_some() {
            let check =
                "limit: c, key: [{ header: c }], when_missing: { address: {} }, consumers: true";
            rules += &rule(CONSUMERS, check);
        }
        rules
    }
}

fn limit_yaml(limit: &Limit, overrides: &str) -> String {
    let windows = limit.windows.iter().map(|window| {
        let (quota, per) = (window.quota, format!("{}ms", window.per_ms));
        match limit.algorithm {
            Algorithm::Log | Algorithm::Fixed | Algorithm::Slots(_) => {
                format!("{{ quota: {quota}, per: {per} }}")
            }
            Algorithm::Sliding(ms) => {
                format!("{{ quota: {quota}, per: {per}, precision: {ms}ms }}")
            }
            Algorithm::Day(zone) => {
                format!("{{ quota: {quota}, per: day, time_zone: {zone} }}")
            }
            Algorithm::Token(burst) => {
                format!("{{ quota: {quota}, per: {per}, burst: {burst} }}")
            }
        }
    });
    let name = match limit.algorithm {
        Algorithm::Log => "sliding_log",
        Algorithm::Sliding(_) => "sliding_window",
        Algorithm::Fixed | Algorithm::Day(_) => "fixed_window",
        Algorithm::Token(_) => "token_bucket",
        Algorithm::Slots(_) => "concurrency",
    };
    let windows: Vec<_> = windows.collect();
    let mut text = format!(
        "    algorithm: {name}\n    windows: [{}]\n{overrides}",
        windows.join(", ")
    );
    if let Algorithm::Slots(longest_ms) = limit.algorithm {
        text += &format!("    longest: {longest_ms}ms\n");
    }
    if let Some(ms) = limit.lease_ms {
        text += &format!("    lease: {{ longest: {ms}ms }}\n");
    }
    if let Some(max) = limit.requests_up_to {
        text += &format!("    quota_from_request: {{ max: {max} }}\n");
    }
    text
}

/// The policy's file, without rules.
pub fn yaml(policy: &Policy, embedded: bool) -> String {
    let store = if embedded {
        "memory"
    } else {
        "redis://127.0.0.1:1"
    };
    let mut text = format!(
        "store: {store}\nstore_timeout: 100ms\nlimits:\n  spare:\n    algorithm: sliding_log\n    windows: [{{ quota: 1, per: 1s }}]\n"
    );
    for (number, limit) in policy.iter().enumerate() {
        let Some(limit) = limit else { continue };
        let blocked = limit
            .blocked
            .map(|key| format!("    overrides: [{{ key: x=k{key}, blocked: true }}]\n"));
        text += &format!(
            "  l{number}:\n{}",
            limit_yaml(limit, &blocked.unwrap_or_default())
        );
    }
    text
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} sidecars, embedded {}, fleet {}, keeps state {}, hang-ups {:?}, start {} us, latency {:?} ms",
            self.seed,
            self.sidecars,
            self.embedded,
            self.fleet,
            self.keeps_state,
            self.hang_ups,
            self.start_us,
            self.latency_ms
        )?;
        for (number, policy) in self.policies.iter().enumerate() {
            let first = &self.policies[0];
            for (limit, of) in policy
                .iter()
                .enumerate()
                .filter(|(limit, of)| number == 0 || **of != first[*limit])
            {
                writeln!(f, "  policy {number}: l{limit}: {of:?}")?;
            }
            if let Some(has) = self.second_set.get(number) {
                writeln!(f, "  policy {number}: has the second set: {has}")?;
            }
            if let Some(tiers) = self.tiers.get(number) {
                writeln!(
                    f,
                    "  policy {number}: consumers with the first limit: {tiers:?}"
                )?;
            }
        }
        if let Some(settles) = &self.settles {
            writeln!(f, "  {settles:?}")?;
        }
        for (at_ms, event) in &self.events {
            writeln!(f, "  {:>8.3} s  {event:?}", *at_ms as f64 / 1_000.0)?;
        }
        Ok(())
    }
}
