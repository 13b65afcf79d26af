//! What happens in a world: the policies that it knows, and events with their times. Printed, it can be read by a person.

use std::fmt;

/// How a limit's windows count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    Log,
    /// With the precision in milliseconds.
    Sliding(u64),
    Fixed,
    /// A day in this time zone.
    Day(&'static str),
    /// With the burst.
    Token(u64),
}

/// A window of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub quota: u64,
    pub per_ms: u64,
}

/// A limit of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub algorithm: Algorithm,
    pub windows: Vec<Window>,
    /// Requests may have quotas of their own, up to this.
    pub requests_up_to: Option<u64>,
    /// How long leases are at most, if it has any.
    pub lease_ms: Option<u64>,
    /// A key that the policy's file blocks: its number.
    pub blocked: Option<usize>,
}

/// A policy: limits by their number; one that is missing was removed.
pub type Policy = Vec<Option<Limit>>;

/// A check of a request: limit, key, cost, quota of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    pub limit: usize,
    pub key: usize,
    pub cost: u64,
    pub quota: Option<u64>,
}

/// What an override says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// With the burst, if it has one of its own.
    Quota(u64, Option<u64>),
    Unlimited,
    Blocked,
}

/// What is done to the link of a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Good,
    Cut,
    LosesAnswers,
    /// Milliseconds there, and back.
    Slow(u64, u64),
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
    /// How long the network takes there, and back.
    pub latency_ms: (u64, u64),
    pub policies: Vec<Policy>,
    /// With milliseconds since the begin; in order of time.
    pub events: Vec<(u64, Event)>,
}

/// The number of keys.
pub const KEYS: usize = 4;

impl Limit {
    fn yaml(&self, overrides: &str) -> String {
        let windows = self.windows.iter().map(|window| {
            let (quota, per) = (window.quota, format!("{}ms", window.per_ms));
            match self.algorithm {
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
        let name = match self.algorithm {
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
        if let Some(ms) = self.lease_ms {
            text += &format!("    lease: {{ longest: {ms}ms, from: 2/s }}\n");
        }
        if let Some(max) = self.requests_up_to {
            text += &format!("    quota_from_request: {{ max: {max} }}\n");
        }
        text
    }
}

/// The policy's file.
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
        text += &format!("  l{number}:\n{}", limit.yaml(&blocked.unwrap_or_default()));
    }
    text
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} sidecars, embedded {}, start {} us, latency {:?} ms",
            self.seed, self.sidecars, self.embedded, self.start_us, self.latency_ms
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
        }
        for (at_ms, event) in &self.events {
            writeln!(f, "  {:>8.3} s  {event:?}", *at_ms as f64 / 1_000.0)?;
        }
        Ok(())
    }
}
