//! What happens in a world: the policies that it knows, and events with their times. Printed, it can be read by a person.

use std::fmt;

/// The last limit of a policy, [`RENAMED`], is what its rules name in place of those that are missing.
pub use sluicegate_history::{Algorithm, Check, Grant, Limit, Link, Policy, Window};

/// How many limits requests ask for.
pub const LIMITS: usize = 3;
/// The number of the limit that another one may be renamed to.
pub const RENAMED: usize = LIMITS;
/// What requests of consumers ask for: which limit counts them depends on the tier that a policy gives them.
pub const CONSUMERS: usize = RENAMED + 1;

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
    /// One filter in front of all sidecars has the rules of their policies. Otherwise each sidecar has a filter with rules of its own.
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
        (format!("l{limit}"), format!("k{key}"))
    }
}

/// The hash of a consumer's key.
fn hash(consumer: usize) -> String {
    format!("{consumer:032x}")
}

/// A consumer's key as the filter writes it.
pub fn hashed(consumer: usize) -> String {
    format!("x#{};@missing/x=a", hash(consumer))
}

impl World {
    /// The limit and key by which a policy counts a check.
    pub fn counted(&self, version: usize, limit: usize, key: usize) -> (usize, usize) {
        if limit != CONSUMERS {
            return (limit, key);
        }
        let (first, last) = self.of_tiers(version);
        let has_first = self.tiers[version][key];
        (if has_first { first } else { last }, KEYS + key)
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
        if !self.fleet {
            return text;
        }
        let mut sets = String::new();
        let many = 1 + usize::from(self.second_set.get(version) == Some(&true));
        for (set, name) in SETS.iter().enumerate().take(many) {
            sets += &format!("  {name}:\n    rules:\n");
            sets += &self.rules(version, set);
        }
        if let Some(has_first) = self.tiers.get(version) {
            let (first, last) = self.of_tiers(version);
            let keys = (0..KEYS).map(|key| format!("{:?}: k{key}", hash(key)));
            let own = (0..KEYS).filter(|key| has_first[*key]);
            let own: String = own.map(|key| format!("k{key}: l{first}, ")).collect();
            text += &format!(
                "consumers:\n  c:\n    pepper: \"0123456789ab\"\n    keys: {{ {} }}\n    limits: {{ {own}default: l{last} }}\n",
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

    fn rules(&self, version: usize, set: usize) -> String {
        let policy = &self.policies[version];
        let mut rules = String::new();
        for asked in 0..LIMITS {
            let mut of = [asked, RENAMED].into_iter();
            if let Some(limit) = of.find(|limit| policy[*limit].is_some()) {
                rules += &format!(
                    "      - {{ name: s{set}r{asked}, when_unavailable: deny, checks: [{{ limit: l{limit}, key: [{{ constant: k }}] }}] }}\n"
                );
            }
        }
        if self.tiers.get(version).is_some() {
            rules += &format!(
                "      - {{ name: s{set}r{CONSUMERS}, when_unavailable: deny, checks: [{{ limit: c, key: [{{ header: x }}], when_missing: {{ address: {{}} }}, consumers: true }}] }}\n"
            );
        }
        rules
    }
}

fn limit_yaml(limit: &Limit, overrides: &str) -> String {
    let windows = limit.windows.iter().map(|window| {
        let (quota, per) = (window.quota, format!("{}ms", window.per_ms));
        match limit.algorithm {
            Algorithm::Log | Algorithm::Fixed => format!("{{ quota: {quota}, per: {per} }}"),
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
    };
    let windows: Vec<_> = windows.collect();
    let mut text = format!(
        "    algorithm: {name}\n    windows: [{}]\n{overrides}",
        windows.join(", ")
    );
    if let Some(ms) = limit.lease_ms {
        text += &format!("    lease: {{ longest: {ms}ms, from: 2/s }}\n");
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
            .map(|key| format!("    overrides: [{{ key: k{key}, blocked: true }}]\n"));
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
            "seed {}: {} sidecars, embedded {}, fleet {}, keeps state {}, start {} us, latency {:?} ms",
            self.seed,
            self.sidecars,
            self.embedded,
            self.fleet,
            self.keeps_state,
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
        for (at_ms, event) in &self.events {
            writeln!(f, "  {:>8.3} s  {event:?}", *at_ms as f64 / 1_000.0)?;
        }
        Ok(())
    }
}
