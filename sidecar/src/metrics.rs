//! What Prometheus is told. The names stand here and nowhere else. No label ever holds a key.

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use sluicegate_protocol::Verdict;

/// Seconds: from well under a local round trip to past the longest sensible deadline.
const STORE_SECONDS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
];

/// The sidecar's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    store_seconds: Histogram,
    store_errors: IntCounterVec,
    epoch: IntGauge,
}

impl Metrics {
    /// Registers them all.
    ///
    /// # Errors
    /// Two metrics have the same name, which is a defect of this file.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            registry: Registry::new(),
            decisions: IntCounterVec::new(
                Opts::new(
                    "sluicegate_decisions_total",
                    "Decisions, by the limit that decided and the verdict.",
                ),
                &["limit", "verdict"],
            )?,
            store_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "sluicegate_store_duration_seconds",
                    "Time of one call to the store, a batch each.",
                )
                .buckets(STORE_SECONDS.to_vec()),
            )?,
            store_errors: IntCounterVec::new(
                Opts::new(
                    "sluicegate_store_errors_total",
                    "Calls to the store that failed, by kind.",
                ),
                &["kind"],
            )?,
            epoch: IntGauge::new(
                "sluicegate_policy_epoch",
                "Version of the policy in force, counted from 1.",
            )?,
        };
        let build = IntGaugeVec::new(
            Opts::new(
                "sluicegate_build_info",
                "Always 1; the version is the label.",
            ),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        metrics.registry.register(Box::new(build))?;
        metrics
            .registry
            .register(Box::new(metrics.decisions.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.store_seconds.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.store_errors.clone()))?;
        metrics.registry.register(Box::new(metrics.epoch.clone()))?;
        Ok(metrics)
    }

    /// Counts one verdict under the limit that decided; `limit` is empty where none could be known.
    pub fn count(&self, limit: &str, verdict: &Verdict<'_>) {
        let verdict = match verdict {
            Verdict::Admitted(_) => "admitted",
            Verdict::Denied(_) => "denied",
            Verdict::Unavailable => "unavailable",
            Verdict::Error { .. } => "error",
        };
        self.decisions.with_label_values(&[limit, verdict]).inc();
    }

    /// Notes how long a call to the store took, whether or not it succeeded.
    pub fn store_took(&self, duration: Duration) {
        self.store_seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failed call to the store.
    pub fn store_failed(&self, kind: &str) {
        self.store_errors.with_label_values(&[kind]).inc();
    }

    /// Says which policy is in force.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.set(i64::try_from(epoch).unwrap_or(i64::MAX));
    }

    /// All of them in Prometheus's text format.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
