//! What Prometheus is told. The names stand here and nowhere else. No label ever holds a key.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder, core::Collector,
};
use sluicegate_protocol::{DeniedHere, Verdict};

use crate::plan::{Source, Told};

/// Seconds: from well under a local round trip to past the longest sensible deadline.
const STORE_SECONDS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
];

/// Decisions in one call, up to the most that fly together.
const BATCH_DECISIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Rules that are told apart by name; those that come later are `other`.
const MAX_SHADOW_RULES: usize = 256;
/// Bytes of a rule's name.
const MAX_RULE_BYTES: usize = 64;

/// A verdict as the value of a label.
const fn label(verdict: &Verdict<'_>) -> &'static str {
    match verdict {
        Verdict::Admitted(_) => "admitted",
        Verdict::Denied(_) => "denied",
        Verdict::Unavailable => "unavailable",
        Verdict::Error { .. } => "error",
    }
}

/// The sidecar's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    shadow_decisions: IntCounterVec,
    /// Rules that have asked in the shadow: their names come over the wire, and a label's values must be few.
    shadow_rules: Mutex<BTreeSet<String>>,
    store_seconds: Histogram,
    store_errors: IntCounterVec,
    batch_decisions: Histogram,
    decision_seconds: Histogram,
    epoch: IntGauge,
    reloads: IntCounterVec,
    reload_successful: IntGauge,
    reload_time: Gauge,
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
                    "Decisions, by the limit that decided, the verdict and where it came from.",
                ),
                &["limit", "verdict", "source"],
            )?,
            shadow_decisions: IntCounterVec::new(
                Opts::new(
                    "sluicegate_shadow_decisions_total",
                    "Decisions that nobody heeds, by the rule that asks, the limit that decided and the verdict.",
                ),
                &["rule", "limit", "verdict"],
            )?,
            shadow_rules: Mutex::default(),
            store_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "sluicegate_store_duration_seconds",
                    "Time of one call to the store, a batch each.",
                )
                .buckets(STORE_SECONDS.to_vec()),
            )?,
            batch_decisions: Histogram::with_opts(
                HistogramOpts::new(
                    "sluicegate_store_batch_decisions",
                    "Decisions that went to the store in one call.",
                )
                .buckets(BATCH_DECISIONS.to_vec()),
            )?,
            decision_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "sluicegate_decision_duration_seconds",
                    "Time of a caller's decisions, waiting for a call under way included.",
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
            reloads: IntCounterVec::new(
                Opts::new(
                    "sluicegate_policy_reloads_total",
                    "Policies read after the first, by outcome.",
                ),
                &["outcome"],
            )?,
            reload_successful: IntGauge::new(
                "sluicegate_policy_last_reload_successful",
                "1 if the policy file as it stands is in force, 0 if it was refused.",
            )?,
            reload_time: Gauge::new(
                "sluicegate_policy_last_reload_success_timestamp_seconds",
                "When the policy in force was loaded, seconds since 1970.",
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
        let collectors: [Box<dyn Collector>; 11] = [
            Box::new(build),
            Box::new(metrics.decisions.clone()),
            Box::new(metrics.shadow_decisions.clone()),
            Box::new(metrics.store_seconds.clone()),
            Box::new(metrics.store_errors.clone()),
            Box::new(metrics.batch_decisions.clone()),
            Box::new(metrics.decision_seconds.clone()),
            Box::new(metrics.epoch.clone()),
            Box::new(metrics.reloads.clone()),
            Box::new(metrics.reload_successful.clone()),
            Box::new(metrics.reload_time.clone()),
        ];
        for collector in collectors {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// Counts one verdict.
    pub fn count(&self, told: &Told<'_>) {
        self.count_as(told, label(&told.verdict));
    }

    /// Counts one verdict that nobody heeds: under the rule that asked, and among all decisions as `shadow_...`.
    pub fn count_shadow(&self, rule: &str, told: &Told<'_>) {
        let rule = if self.is_known(rule) { rule } else { "other" };
        let verdict = label(&told.verdict);
        self.shadow_decisions
            .with_label_values(&[rule, told.limit, verdict])
            .inc();
        let verdict = match told.verdict {
            Verdict::Admitted(_) => "shadow_admitted",
            Verdict::Denied(_) => "shadow_denied",
            _ => verdict,
        };
        self.count_as(told, verdict);
    }

    /// Counts what a filter has denied by its own certificates. A limit that the policy does not have, which a reload
    /// may have taken away, is counted without its name: labels are bounded by what operators write.
    pub fn count_denied_here(&self, denied: &DeniedHere<'_>, known: bool) {
        let limit = if known { denied.limit.as_ref() } else { "" };
        let verdict = match denied.shadow.as_deref() {
            None => "denied",
            Some(rule) => {
                let rule = if self.is_known(rule) { rule } else { "other" };
                self.shadow_decisions
                    .with_label_values(&[rule, limit, "denied"])
                    .inc_by(denied.count);
                "shadow_denied"
            }
        };
        self.decisions
            .with_label_values(&[limit, verdict, "filter"])
            .inc_by(denied.count);
    }

    fn count_as(&self, told: &Told<'_>, verdict: &str) {
        let source = match told.source {
            Source::Store => "store",
            Source::Certificate => "certificate",
            Source::Request => "request",
        };
        self.decisions
            .with_label_values(&[told.limit, verdict, source])
            .inc();
    }

    fn is_known(&self, rule: &str) -> bool {
        let mut rules = self
            .shadow_rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if rules.contains(rule) {
            return true;
        }
        let new = rules.len() < MAX_SHADOW_RULES && rule.len() <= MAX_RULE_BYTES;
        if new {
            rules.insert(rule.to_owned());
        }
        new
    }

    /// Notes how long a call to the store took, whether or not it succeeded.
    pub fn store_took(&self, duration: Duration) {
        self.store_seconds.observe(duration.as_secs_f64());
    }

    /// Notes how many decisions go to the store together.
    pub fn batch_flies(&self, decisions: usize) {
        self.batch_decisions
            .observe(u32::try_from(decisions).unwrap_or(u32::MAX).into());
    }

    /// Notes how long a caller waited for its decisions.
    pub fn decided_within(&self, duration: Duration) {
        self.decision_seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failed call to the store.
    pub fn store_failed(&self, kind: &str) {
        self.store_errors.with_label_values(&[kind]).inc();
    }

    /// Says which policy is in force, from now on.
    pub fn policy_loaded(&self, epoch: u64) {
        self.epoch.set(i64::try_from(epoch).unwrap_or(i64::MAX));
        self.reload_successful.set(1);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        self.reload_time.set(now.as_secs_f64());
        if epoch > 1 {
            self.reloads.with_label_values(&["loaded"]).inc();
        }
    }

    /// Says that the policy file cannot be used.
    pub fn policy_refused(&self) {
        self.reload_successful.set(0);
        self.reloads.with_label_values(&["refused"]).inc();
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
