//! The messages of the live page's stream, as JSON types. They hold no key and nothing of the store's address.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_protocol::Top;

use super::series::{Row, Sent, SeriesView, row};
use crate::decide::{Epoch, PolicyHandle};
use crate::policy::{AlgorithmName, Limit, window_name};
use crate::telemetry::events::{Event, EventKind, EventLog, StoreState};
use crate::telemetry::history::{Failures, History, Sample};
use crate::telemetry::metrics::LeaseTotals;

/// Everything that the page shows, once a second. Counts are totals since the start, so a lost message does no harm.
#[derive(Debug, Serialize)]
pub struct Snapshot {
    now_ms: u64,
    /// By the clock then. Also distinguishes this process from the next.
    started_ms: u64,
    /// How long this process has run, whatever the clock did.
    up_ms: u64,
    version: &'static str,
    policy: PolicyView,
    store: StoreView,
    /// Only if a limit of the policy has leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    leases: Option<LeaseTotals>,
    /// The newest sample, with the counts of all series.
    sample: SampleView,
    series: Vec<SeriesView>,
    /// A limit that is not in `series` may have had decisions.
    left_out: bool,
    top: Top,
    events: Vec<EventView>,
}

/// The samples of the last minutes, once for each viewer.
#[derive(Debug, Serialize)]
pub struct Past {
    started_ms: u64,
    series: Vec<Charted>,
    /// A limit that is not in `series` may have had decisions.
    left_out: bool,
    samples: Vec<SampleView>,
}

#[derive(Debug, Serialize)]
struct PolicyView {
    epoch: u64,
    since_ms: u64,
    /// Why the file's current content was refused.
    refused: Option<String>,
    /// Limits that requests ask for and the policy does not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown_limits: Vec<String>,
    store_timeout_ms: u64,
    denial_ttl_ms: u64,
    limits: Vec<LimitView>,
}

#[derive(Debug, Serialize)]
struct LimitView {
    name: String,
    windows: Vec<WindowView>,
}

#[derive(Debug, Serialize)]
struct WindowView {
    algorithm: AlgorithmName,
    quota: u64,
    per_ms: u64,
    /// The name of a calendar window, whose lengths differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
}

/// The store.
#[derive(Debug, Serialize)]
pub struct StoreView {
    /// Its kind, for people.
    name: &'static str,
    /// Sidecars that divide the limits among them; 0 if it was never reached.
    sidecars: u64,
    #[serde(flatten)]
    state: StoreStateView,
}

#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum StoreStateView {
    Unasked,
    Answers,
    Lost { since_ms: u64, why: String },
}

#[derive(Debug, Serialize)]
struct SampleView {
    at_ms: u64,
    /// The clock was set back before it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    after_step: bool,
    /// Of all limits.
    total: Row,
    /// Failed store calls, by kind.
    failures: Failures,
    /// For each series the same as in `total`; nothing if it was not kept then.
    counts: Vec<Option<Row>>,
}

/// A series whose counts are in all samples.
#[derive(Debug, Serialize)]
struct Charted {
    name: String,
}

#[derive(Debug, Serialize)]
struct EventView {
    number: u64,
    at_ms: u64,
    kind: &'static str,
    detail: String,
    times: u32,
    /// The clock has been set back since: it happened earlier.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    before_step: bool,
}

impl Snapshot {
    /// The state of everything at one moment.
    pub fn new(
        (now_ms, started_ms, up_ms): (u64, u64, u64),
        (policy, unknown_limits): (&PolicyHandle, Vec<String>),
        store: StoreView,
        leases: Option<LeaseTotals>,
        events: &EventLog,
        history: &History,
        top: Top,
    ) -> Self {
        let epoch = policy.current();
        let in_force: BTreeSet<_> = epoch.policy.limits().map(|limit| &*limit.name).collect();
        let sent = Sent::new(history, |name| in_force.contains(name), now_ms);
        Self {
            now_ms,
            started_ms,
            up_ms,
            version: env!("CARGO_PKG_VERSION"),
            policy: PolicyView {
                unknown_limits,
                ..PolicyView::new(&epoch, events.policy_since_ms(), policy.source.refusal())
            },
            store,
            leases,
            sample: SampleView {
                counts: sent.counts,
                ..history.samples().next_back().map_or_else(
                    || SampleView::before_the_first(started_ms),
                    SampleView::from,
                )
            },
            series: sent.series,
            left_out: sent.left_out,
            top,
            events: events.newest().into_iter().map(EventView::from).collect(),
        }
    }
}

impl Past {
    /// All samples that are kept.
    pub fn new(started_ms: u64, history: &History) -> Self {
        let named = |name: &String| Charted { name: name.clone() };
        Self {
            started_ms,
            series: history.charts().iter().map(named).collect(),
            left_out: history.series().any(|(_, series)| series.chart.is_none()),
            samples: history.samples().map(SampleView::from).collect(),
        }
    }
}

impl StoreView {
    /// The store's kind and state, and how many sidecars share it.
    pub fn new(name: &'static str, sidecars: u64, state: StoreState) -> Self {
        Self {
            name,
            sidecars,
            state: state.into(),
        }
    }
}

impl PolicyView {
    fn new(epoch: &Epoch, since_ms: u64, refused: Option<String>) -> Self {
        let policy = &epoch.policy;
        let ms =
            |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            epoch: epoch.policy_number,
            since_ms,
            refused,
            unknown_limits: Vec::new(),
            store_timeout_ms: ms(policy.store_timeout),
            denial_ttl_ms: ms(policy.denial_ttl),
            limits: policy.limits().map(LimitView::from).collect(),
        }
    }
}

impl From<&Arc<Limit>> for LimitView {
    fn from(limit: &Arc<Limit>) -> Self {
        Self {
            name: limit.name.clone(),
            windows: limit.windows.iter().map(WindowView::from).collect(),
        }
    }
}

impl From<&BucketSpec> for WindowView {
    fn from(spec: &BucketSpec) -> Self {
        Self {
            algorithm: spec.algorithm.into(),
            quota: spec.quota,
            per_ms: spec.window_us / 1_000,
            calendar: match spec.algorithm {
                Algorithm::CalendarWindow(_) => Some(window_name(spec)),
                _ => None,
            },
            burst: match spec.algorithm {
                Algorithm::TokenBucket { burst } => Some(burst),
                _ => None,
            },
        }
    }
}

impl From<StoreState> for StoreStateView {
    fn from(store: StoreState) -> Self {
        match store {
            StoreState::Unasked => Self::Unasked,
            StoreState::Answers => Self::Answers,
            StoreState::Lost { since_ms, why } => Self::Lost { since_ms, why },
        }
    }
}

impl SampleView {
    const fn before_the_first(started_ms: u64) -> Self {
        Self {
            at_ms: started_ms,
            after_step: false,
            total: [0; 5],
            failures: Failures::new(),
            counts: Vec::new(),
        }
    }
}

impl From<&Sample> for SampleView {
    fn from(sample: &Sample) -> Self {
        Self {
            at_ms: sample.at_ms,
            after_step: sample.after_step,
            total: row(&sample.total),
            failures: sample.failures.clone(),
            counts: sample.counts.iter().map(|c| c.as_ref().map(row)).collect(),
        }
    }
}

impl From<Event> for EventView {
    fn from(event: Event) -> Self {
        Self {
            number: event.number,
            at_ms: event.at_ms,
            kind: match event.kind {
                EventKind::Started => "started",
                EventKind::PolicyLoaded => "policy_loaded",
                EventKind::PolicyRefused => "policy_refused",
                EventKind::StoreLost => "store_lost",
                EventKind::StoreBack => "store_back",
                EventKind::OverrideSet => "override_set",
                EventKind::OverrideRemoved => "override_removed",
                EventKind::OverridesLost => "overrides_lost",
            },
            detail: event.detail,
            times: event.times,
            before_step: event.before_step,
        }
    }
}
