//! Every metric of the sidecar by name. They stand here and nowhere else, and `docs/metrics.md` has them in a table.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use crate::telemetry::labels::{FailureKind, Outcome, Reloaded, Source};
use crate::telemetry::top::Denied;

/// Seconds: from well under a local round trip to past the longest sensible deadline.
const SECONDS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
];
/// Decisions in one call, up to the most that fly together.
const BATCH_DECISIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Shares of a limit: finer where it is about to bind.
const USED_RATIO: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];

/// Rules that are told apart by name; those that come later are `other`.
const MAX_SHADOW_RULES: usize = 256;
/// Bytes of a rule's name.
const MAX_RULE_BYTES: usize = 64;

/// Why metrics cannot be kept: a defect of this file, or of `top.rs`.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// Two have the same name, or one has a name that Prometheus refuses.
    #[error("metrics: {0}")]
    Family(#[from] prometheus::Error),
    /// A size that a sketch cannot have.
    #[error("the sketch of denied subjects: {0}")]
    Sketch(#[from] datasketches::error::Error),
}

/// All of them, registered.
#[derive(Debug)]
pub struct Families {
    pub registry: Registry,
    pub decisions: IntCounterVec,
    pub shadow_decisions: IntCounterVec,
    /// Rules that have asked in the shadow: their names come over the wire, and a label's values must be few.
    shadow_rules: Mutex<BTreeSet<String>>,
    pub used: HistogramVec,
    pub nearest_ratio: GaugeVec,
    pub top_denied_ratio: GaugeVec,
    pub store_seconds: Histogram,
    pub store_errors: IntCounterVec,
    pub store_up: IntGauge,
    pub batch_decisions: Histogram,
    pub queue_seconds: Histogram,
    pub decision_seconds_store: Histogram,
    pub decision_seconds_certificate: Histogram,
    pub certificates: IntGauge,
    pub sidecars: IntGauge,
    pub unwritten: IntGauge,
    pub epoch: IntGauge,
    pub reloads_loaded: IntCounter,
    pub reloads_refused: IntCounter,
    pub reload_successful: IntGauge,
    pub reload_time: Gauge,
    /// What a limit's sketch of the denied begins with.
    pub nobody: Denied,
}

impl Families {
    /// Registers them all, with the series that need no limit at 0.
    pub fn new() -> Result<Self, Failed> {
        let registry = Registry::new();
        let build = add(
            &registry,
            IntGaugeVec::new(
                Opts::new(
                    "sluicegate_build_info",
                    "Always 1; the version is the label.",
                ),
                &["version"],
            )?,
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let store_errors = counters(
            &registry,
            "sluicegate_store_errors_total",
            "Calls to the store that failed, by kind.",
            &["kind"],
        )?;
        for kind in FailureKind::ALL {
            store_errors.with_label_values(&[kind.name()]);
        }
        let decisions = counters(
            &registry,
            "sluicegate_decisions_total",
            "Decisions, by the limit that decided, the verdict and where it came from.",
            &["limit", "verdict", "source"],
        )?;
        // Decisions that cannot be made have no limit.
        decisions.with_label_values(&["", Outcome::Error.name(), Source::Request.name()]);
        let reloads = counters(
            &registry,
            "sluicegate_policy_reloads_total",
            "Policies read after the first, by outcome.",
            &["outcome"],
        )?;
        let [loaded, refused] = [Reloaded::Loaded, Reloaded::Refused]
            .map(|outcome| reloads.with_label_values(&[outcome.name()]));
        let decision_seconds = histograms(
            &registry,
            "sluicegate_decision_duration_seconds",
            "Time of a caller's decisions, waiting for a call under way included, by whether the store was asked.",
            &SECONDS,
            "source",
        )?;
        Ok(Self {
            decisions,
            shadow_decisions: counters(
                &registry,
                "sluicegate_shadow_decisions_total",
                "Decisions that nobody heeds, by the rule that asks, the limit that decided and the verdict.",
                &["rule", "limit", "verdict"],
            )?,
            shadow_rules: Mutex::default(),
            used: histograms(
                &registry,
                "sluicegate_limit_used_ratio",
                "How much of its limit a subject had used after a decision of the store, 0 to 1.",
                &USED_RATIO,
                "limit",
            )?,
            nearest_ratio: gauges(
                &registry,
                "sluicegate_limit_nearest_ratio",
                "The most that any subject had used of its limit in the last minute, 0 to 1.",
            )?,
            top_denied_ratio: gauges(
                &registry,
                "sluicegate_top_denied_ratio",
                "Share of a limit's denials in the last minutes that were the most denied subject's, 0 to 1; at least.",
            )?,
            store_seconds: histogram(
                &registry,
                "sluicegate_store_duration_seconds",
                "Time of one call to the store, a batch each.",
                &SECONDS,
            )?,
            store_errors,
            store_up: add(
                &registry,
                IntGauge::new(
                    "sluicegate_store_up",
                    "1 while all of the store can be used, else 0.",
                )?,
            )?,
            batch_decisions: histogram(
                &registry,
                "sluicegate_store_batch_decisions",
                "Decisions that went to the store in one call.",
                &BATCH_DECISIONS,
            )?,
            queue_seconds: histogram(
                &registry,
                "sluicegate_queue_wait_seconds",
                "Time that a caller's decisions waited for the store call under way before they went.",
                &SECONDS,
            )?,
            decision_seconds_store: decision_seconds.with_label_values(&[Source::Store.name()]),
            decision_seconds_certificate: decision_seconds
                .with_label_values(&[Source::Certificate.name()]),
            certificates: add(
                &registry,
                IntGauge::new(
                    "sluicegate_certificates",
                    "Denials held that are given again without asking the store.",
                )?,
            )?,
            sidecars: add(
                &registry,
                IntGauge::new(
                    "sluicegate_sidecars",
                    "Sidecars that shared the store when it last said so; 0 if it never did.",
                )?,
            )?,
            unwritten: add(
                &registry,
                IntGauge::new(
                    "sluicegate_unwritten_buckets",
                    "Buckets from which units were admitted without the store that it does not know of yet.",
                )?,
            )?,
            epoch: add(
                &registry,
                IntGauge::new(
                    "sluicegate_policy_epoch",
                    "Version of the policy in force, counted from 1.",
                )?,
            )?,
            reloads_loaded: loaded,
            reloads_refused: refused,
            reload_successful: add(
                &registry,
                IntGauge::new(
                    "sluicegate_policy_last_reload_successful",
                    "1 if the policy file as it stands is in force, 0 if it was refused.",
                )?,
            )?,
            reload_time: add(
                &registry,
                Gauge::new(
                    "sluicegate_policy_last_reload_success_timestamp_seconds",
                    "When the policy in force was loaded, seconds since 1970.",
                )?,
            )?,
            nobody: Denied::new()?,
            registry,
        })
    }

    /// What a rule that asks in the shadow is called in labels.
    pub fn shadow_rule<'a>(&self, rule: &'a str) -> &'a str {
        let mut rules = self
            .shadow_rules
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if rules.contains(rule) {
            return rule;
        }
        if rules.len() >= MAX_SHADOW_RULES || rule.len() > MAX_RULE_BYTES {
            return "other";
        }
        rules.insert(rule.to_owned());
        rule
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, family: C) -> prometheus::Result<C> {
    registry.register(Box::new(family.clone()))?;
    Ok(family)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    add(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// Gauges of limits.
fn gauges(registry: &Registry, name: &str, help: &str) -> prometheus::Result<GaugeVec> {
    add(registry, GaugeVec::new(Opts::new(name, help), &["limit"])?)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> prometheus::Result<Histogram> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    add(registry, Histogram::with_opts(options)?)
}

fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
    label: &str,
) -> prometheus::Result<HistogramVec> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    add(registry, HistogramVec::new(options, &[label])?)
}
