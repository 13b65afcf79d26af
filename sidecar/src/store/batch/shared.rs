//! What the queues and their calls share.

use std::fmt::Display;
use std::sync::Arc;

use crate::store::kinds::Store;
use crate::telemetry::events::EventLog;
use crate::telemetry::labels::FailureKind;
use crate::telemetry::metrics::Metrics;

/// The store, and where failures are told.
pub struct Shared {
    /// The store.
    pub store: Arc<Store>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The events of the live page.
    pub events: Arc<EventLog>,
}

impl Shared {
    /// The connections, not the calls, determine whether the store is up.
    pub fn record_failure(&self, kind: FailureKind, why: impl Display) {
        self.metrics.count_store_failure(kind);
        self.events.log.failed(kind, why);
    }
}
