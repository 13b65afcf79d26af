//! Logs failed calls of a service, the store or the collector of spans, as few lines with a count.

use std::fmt::Display;
use std::sync::Mutex;

use tracing::{info, warn};

use super::labels::FailureKind;
use super::throttle::{FailureThrottle, Outage};
use crate::clock;
use crate::lock::lock;

/// Logs failed calls of a service; shared by all its callers.
#[derive(Debug)]
pub struct FailureLog {
    service: &'static str,
    /// The beginning of a failure's line.
    failure: &'static str,
    throttle: Mutex<FailureThrottle>,
}

impl Default for FailureLog {
    /// For calls of the store.
    fn default() -> Self {
        Self::of("the store", "store call failed")
    }
}

impl FailureLog {
    /// For calls of this service, whose failures are logged as `failure` and their reason.
    pub fn of(service: &'static str, failure: &'static str) -> Self {
        Self {
            service,
            failure,
            throttle: Mutex::default(),
        }
    }

    /// Logs a failed call, throttled. `why` goes to the log: it must hold no key and no secret.
    pub fn failed(&self, kind: FailureKind, why: impl Display) {
        let logged = lock(&self.throttle).failed(clock::now_us(), kind);
        match logged {
            None => {}
            Some(1) => warn!(%kind, "{}: {why}", self.failure),
            Some(times) => warn!(%kind, repeated = times - 1, "{}: {why}", self.failure),
        }
    }

    /// Notes that an outage began `ago_us` microseconds ago, unless one is under way.
    pub fn began(&self, ago_us: u64) {
        lock(&self.throttle).began(clock::now_us().saturating_sub(ago_us));
    }

    /// Notes that no outage is under way, and logs the end of one.
    pub fn succeeded(&self) {
        let over = lock(&self.throttle).succeeded();
        if let Some(Outage { since_us, failed }) = over {
            let seconds = clock::now_us().saturating_sub(since_us) as f64 / 1_000_000.0;
            let calls = if failed == 1 { "call" } else { "calls" };
            info!(
                "{} is back after {seconds:.1} s, {failed} failed {calls}",
                self.service
            );
        }
    }
}
