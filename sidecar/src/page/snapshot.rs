//! What the live page is told, as JSON: the wire's types, made from what the sidecar knows. No key is in it, and
//! nothing of the store's address.

use std::sync::Arc;

use serde::Serialize;
use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_protocol::Top;

use crate::decide::{Epoch, Live};
use crate::policy::{AlgorithmName, Limit};
use crate::telemetry::events::{Event, Incidents, Kind, Store};
use crate::telemetry::history::{Counts, Sample, Series};

/// All that the page shows, once a second. Counts are totals since the start: a message that is lost costs nothing.
#[derive(Debug, Serialize)]
pub struct Snapshot {
    now_ms: u64,
    /// Also tells one process from the next.
    started_ms: u64,
    version: &'static str,
    policy: PolicyTold,
    store: StoreTold,
    /// The newest sample.
    sample: SampleTold,
    series: Vec<SeriesTold>,
    top: Top,
    events: Vec<EventTold>,
}

/// The samples of the last minutes, once for each viewer.
#[derive(Debug, Serialize)]
pub struct Past {
    started_ms: u64,
    series: Vec<SeriesTold>,
    samples: Vec<SampleTold>,
}

#[derive(Debug, Serialize)]
struct PolicyTold {
    epoch: u64,
    since_ms: u64,
    /// What is wrong with the file as it stands now.
    refused: Option<String>,
    store_timeout_ms: u64,
    denial_ttl_ms: u64,
    limits: Vec<LimitTold>,
}

#[derive(Debug, Serialize)]
struct LimitTold {
    name: String,
    windows: Vec<WindowTold>,
}

#[derive(Debug, Serialize)]
struct WindowTold {
    algorithm: AlgorithmName,
    quota: u64,
    per_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
}

#[derive(Debug, Serialize)]
struct StoreTold {
    /// What it is, for people.
    name: &'static str,
    #[serde(flatten)]
    state: StoreState,
}

#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum StoreState {
    Unasked,
    Answers,
    Lost { since_ms: u64, why: String },
}

#[derive(Debug, Serialize)]
struct SampleTold {
    at_ms: u64,
    /// For each series: admitted, denied, unavailable, error, shadow denied.
    counts: Vec<[u64; 5]>,
}

#[derive(Debug, Serialize)]
struct SeriesTold {
    name: String,
    denying_since_ms: Option<u64>,
    denying_last_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct EventTold {
    number: u64,
    at_ms: u64,
    kind: &'static str,
    detail: String,
    times: u32,
}

impl Snapshot {
    /// Of everything at one time.
    pub fn new(
        (now_ms, started_ms): (u64, u64),
        live: &Live,
        store: &'static str,
        incidents: &Incidents,
        series: &[Series],
        newest: &Sample,
        top: Top,
    ) -> Self {
        let epoch = live.current();
        Self {
            now_ms,
            started_ms,
            version: env!("CARGO_PKG_VERSION"),
            policy: PolicyTold::new(&epoch, incidents.policy_since_ms(), live.source.refusal()),
            store: StoreTold {
                name: store,
                state: incidents.store().into(),
            },
            sample: newest.into(),
            series: series.iter().map(SeriesTold::from).collect(),
            top,
            events: incidents
                .newest()
                .into_iter()
                .map(EventTold::from)
                .collect(),
        }
    }
}

impl Past {
    /// Of all samples.
    pub fn new<'a>(
        started_ms: u64,
        series: &[Series],
        samples: impl Iterator<Item = &'a Sample>,
    ) -> Self {
        Self {
            started_ms,
            series: series.iter().map(SeriesTold::from).collect(),
            samples: samples.map(SampleTold::from).collect(),
        }
    }
}

impl PolicyTold {
    fn new(epoch: &Epoch, since_ms: u64, refused: Option<String>) -> Self {
        let policy = &epoch.policy;
        let ms =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            epoch: epoch.number,
            since_ms,
            refused,
            store_timeout_ms: ms(policy.store_timeout),
            denial_ttl_ms: ms(policy.denial_ttl),
            limits: policy.limits().map(LimitTold::from).collect(),
        }
    }
}

impl From<&Arc<Limit>> for LimitTold {
    fn from(limit: &Arc<Limit>) -> Self {
        Self {
            name: limit.name.clone(),
            windows: limit.windows.iter().map(WindowTold::from).collect(),
        }
    }
}

impl From<&BucketSpec> for WindowTold {
    fn from(spec: &BucketSpec) -> Self {
        Self {
            algorithm: spec.algorithm.into(),
            quota: spec.limit,
            per_ms: spec.window_us / 1_000,
            burst: match spec.algorithm {
                Algorithm::TokenBucket { burst } => Some(burst),
                _ => None,
            },
        }
    }
}

impl From<Store> for StoreState {
    fn from(store: Store) -> Self {
        match store {
            Store::Unasked => Self::Unasked,
            Store::Answers => Self::Answers,
            Store::Lost { since_ms, why } => Self::Lost { since_ms, why },
        }
    }
}

impl From<&Sample> for SampleTold {
    fn from(sample: &Sample) -> Self {
        let told = |counts: &Counts| {
            [
                counts.admitted,
                counts.denied,
                counts.unavailable,
                counts.error,
                counts.shadow_denied,
            ]
        };
        Self {
            at_ms: sample.at_ms,
            counts: sample.counts.iter().map(told).collect(),
        }
    }
}

impl From<&Series> for SeriesTold {
    fn from(series: &Series) -> Self {
        Self {
            name: series.name.clone(),
            denying_since_ms: series.denying.map(|run| run.since_ms),
            denying_last_ms: series.denying.map(|run| run.last_ms),
        }
    }
}

impl From<Event> for EventTold {
    fn from(event: Event) -> Self {
        Self {
            number: event.number,
            at_ms: event.at_ms,
            kind: match event.kind {
                Kind::Started => "started",
                Kind::PolicyLoaded => "policy_loaded",
                Kind::PolicyRefused => "policy_refused",
                Kind::StoreLost => "store_lost",
                Kind::StoreBack => "store_back",
            },
            detail: event.detail,
            times: event.times,
        }
    }
}
