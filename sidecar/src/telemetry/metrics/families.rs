//! Every metric of the sidecar: name, help and buckets. `docs/metrics.md` lists them in a table.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use tracing::warn;

use crate::clock;
use crate::policy::is_name;
use crate::telemetry::labels::{FailureKind, Outcome, ReloadOutcome, Source};
use crate::telemetry::recent::Recent;
use crate::telemetry::top::DenialCounts;

/// Seconds: from well under a local round trip to past the longest sensible deadline.
const SECONDS: [f64; 13] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
];
/// Decisions in one call of the store, up to the largest batch of counters that an ordinary request makes.
const BATCH_DECISIONS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
/// Shares of a limit: finer where it is about to bind.
const USED_RATIO: [f64; 8] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];

/// Rules that get a label value of their own; those that come later share `other`.
const MAX_SHADOW_RULES: usize = 256;
/// Bytes of a rule's name.
const MAX_RULE_BYTES: usize = 64;

/// Why metrics cannot be registered: a defect of this file, or of `top.rs`.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// Two have the same name, or one has a name that Prometheus refuses.
    #[error("metrics: {0}")]
    Family(#[from] prometheus::Error),
    /// The sketch was given an invalid size.
    #[error("the sketch of denied subjects: {0}")]
    Sketch(#[from] datasketches::error::Error),
}

/// All of them, registered.
#[derive(Debug)]
pub struct Families {
    pub registry: Registry,
    pub decisions: IntCounterVec,
    pub shadow_decisions: IntCounterVec,
    /// Names of the rules that sent shadow decisions. They come over the wire, so the number of label values is bounded.
    shadow_rules: Mutex<BTreeSet<String>>,
    pub used: HistogramVec,
    pub quota: GaugeVec,
    pub window_seconds: GaugeVec,
    pub burst: GaugeVec,
    pub refused_quotas: IntCounterVec,
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
    pub neighbours: GaugeVec,
    pub connections_made: IntCounterVec,
    pub server_changes: IntCounter,
    pub evicting: IntGauge,
    pub evicted_keys: IntCounter,
    pub round_trip: Gauge,
    pub store_clock_ahead: Gauge,
    pub unwritten: IntGauge,
    pub tasks: IntGauge,
    pub unknown_limits: IntGauge,
    /// Limits that requests asked for and the policy of that moment did not have.
    pub unknown: Mutex<Recent<String>>,
    pub overrides: IntGaugeVec,
    pub overrides_lost: IntCounter,
    pub lease_units: IntCounterVec,
    pub lease_held: IntGaugeVec,
    pub lease_refusals: IntCounterVec,
    pub filter_info: IntGaugeVec,
    pub epoch: IntGauge,
    pub reloads_loaded: IntCounter,
    pub reloads_refused: IntCounter,
    pub reload_successful: IntGauge,
    pub reload_time: Gauge,
    /// An empty sketch of denied subjects, for new limits.
    pub no_denials: DenialCounts,
}

impl Families {
    /// Registers all metrics. Series without a `limit` label start at 0.
    pub fn new() -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let build = int_gauges(
            &registry,
            "sluicegate_build_info",
            "Always 1; the version and the commit are labels.",
            &["version", "commit"],
        )?;
        // deploy/release/source sets it for the builds of a release.
        let commit = option_env!("SLUICEGATE_REVISION").unwrap_or("unknown");
        build
            .with_label_values(&[env!("CARGO_PKG_VERSION"), commit])
            .set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let store_errors = counters(
            &registry,
            "sluicegate_store_errors_total",
            "Calls to the store that failed, and callers whose decisions did not reach it in time, by kind.",
            &["kind"],
        )?;
        for kind in FailureKind::ALL {
            store_errors.with_label_values(&[kind.name()]);
        }
        let decisions = counters(
            &registry,
            "sluicegate_decisions_total",
            "Decisions by limit, verdict and source of the verdict.",
            &["limit", "verdict", "source"],
        )?;
        // Decisions that fail validation have no limit.
        decisions.with_label_values(&["", Outcome::Error.name(), Source::Request.name()]);
        let reloads = counters(
            &registry,
            "sluicegate_policy_reloads_total",
            "Policy reloads by outcome.",
            &["outcome"],
        )?;
        let [loaded, refused] = [ReloadOutcome::Loaded, ReloadOutcome::Refused]
            .map(|outcome| reloads.with_label_values(&[outcome.name()]));
        let decision_seconds = histograms(
            &registry,
            "sluicegate_decision_duration_seconds",
            "Time to decide a request, including the wait in the queue, by whether the store was called.",
            &SECONDS,
            "source",
        )?;
        Ok(Self {
            decisions,
            shadow_decisions: counters(
                &registry,
                "sluicegate_shadow_decisions_total",
                "Shadow decisions (evaluated, not enforced) by rule, limit and verdict.",
                &["rule", "limit", "verdict"],
            )?,
            shadow_rules: Mutex::default(),
            used: histograms(
                &registry,
                "sluicegate_limit_used_ratio",
                "Share of its quota that a subject had used after a decision of the store, 0 to 1.",
                &USED_RATIO,
                "limit",
            )?,
            quota: gauges(
                &registry,
                "sluicegate_limit_quota",
                "Units that one subject may take in a window of the limit, by the policy in force.",
                &["limit", "window"],
            )?,
            window_seconds: gauges(
                &registry,
                "sluicegate_limit_window_seconds",
                "Length of a window of the limit; for a calendar window, of the current one.",
                &["limit", "window"],
            )?,
            burst: gauges(
                &registry,
                "sluicegate_limit_burst",
                "Units that a full token bucket of the limit holds.",
                &["limit", "window"],
            )?,
            refused_quotas: counters(
                &registry,
                "sluicegate_quota_requests_refused_total",
                "Quotas that requests asked for and the limit does not accept; its own quota counted instead.",
                &["limit"],
            )?,
            top_denied_ratio: gauges(
                &registry,
                "sluicegate_top_denied_ratio",
                "Lower bound of the share of a limit's recent denials that went to the most denied subject, 0 to 1.",
                &["limit"],
            )?,
            store_seconds: histogram(
                &registry,
                "sluicegate_store_duration_seconds",
                "Time of one call to the store; each call carries one batch.",
                &SECONDS,
            )?,
            store_errors,
            store_up: gauge(
                &registry,
                "sluicegate_store_up",
                "1 while every part of the store can be used, else 0.",
            )?,
            batch_decisions: histogram(
                &registry,
                "sluicegate_store_batch_decisions",
                "Decisions sent to the store in one call.",
                &BATCH_DECISIONS,
            )?,
            queue_seconds: histogram(
                &registry,
                "sluicegate_queue_wait_seconds",
                "Time that decisions waited in the queue for the running store call to finish.",
                &SECONDS,
            )?,
            decision_seconds_store: decision_seconds.with_label_values(&[Source::Store.name()]),
            decision_seconds_certificate: decision_seconds
                .with_label_values(&[Source::Certificate.name()]),
            certificates: gauge(
                &registry,
                "sluicegate_certificates",
                "Cached denials, which are answered without a call to the store.",
            )?,
            sidecars: gauge(
                &registry,
                "sluicegate_sidecars",
                "Sidecars that divide the limits among them while the store is down; 0 before the first announcement.",
            )?,
            neighbours: gauges(
                &registry,
                "sluicegate_neighbours",
                "Others on this Redis: other limits under this `key_prefix`, and other key prefixes.",
                &["other"],
            )?,
            connections_made: counters(
                &registry,
                "sluicegate_store_connections_total",
                "Connections to Redis that were made, by why.",
                &["cause"],
            )?,
            server_changes: counter(
                &registry,
                "sluicegate_store_server_changes_total",
                "Times that another server was found where one was before, such as a new primary.",
            )?,
            evicting: gauge(
                &registry,
                "sluicegate_store_evicting",
                "Redis servers in use that evict keys when their memory is full, and with them what was admitted.",
            )?,
            evicted_keys: counter(
                &registry,
                "sluicegate_store_evicted_keys_total",
                "Keys that Redis evicted, of anybody, since this sidecar has known it.",
            )?,
            round_trip: add(
                &registry,
                Gauge::new(
                    "sluicegate_store_round_trip_seconds",
                    "How long the last announcement to the store took.",
                )?,
            )?,
            store_clock_ahead: add(
                &registry,
                Gauge::new(
                    "sluicegate_store_clock_ahead_seconds",
                    "How far the store's clock is ahead of this host's, less up to a round trip.",
                )?,
            )?,
            unwritten: gauge(
                &registry,
                "sluicegate_unwritten_buckets",
                "Buckets whose units were admitted without the store and have not been written back yet.",
            )?,
            tasks: gauge(
                &registry,
                "sluicegate_tasks",
                "Tasks under way: about one for each connection, and a few of its own.",
            )?,
            unknown_limits: gauge(
                &registry,
                "sluicegate_unknown_limits",
                "Limits that requests asked for in the last minute and the policy does not have.",
            )?,
            unknown: Mutex::default(),
            overrides: int_gauges(
                &registry,
                "sluicegate_overrides",
                "Overrides in force, by what they allow.",
                &["allowance"],
            )?,
            overrides_lost: counter(
                &registry,
                "sluicegate_overrides_lost_total",
                "Overrides that this sidecar knew and the store had lost, or had again after their removal.",
            )?,
            lease_units: counters(
                &registry,
                "sluicegate_lease_units_total",
                "Units of leases that the store granted, that were spent, and that were returned.",
                &["limit", "event"],
            )?,
            lease_held: int_gauges(
                &registry,
                "sluicegate_lease_units_held",
                "Units of leases that are neither spent nor returned yet.",
                &["limit"],
            )?,
            lease_refusals: counters(
                &registry,
                "sluicegate_lease_refusals_total",
                "Times that a key got no lease, by reason.",
                &["limit", "reason"],
            )?,
            filter_info: int_gauges(
                &registry,
                "sluicegate_filter_info",
                "Always 1; filters that announced themselves in the last minute, by version and configuration.",
                &["version", "configuration"],
            )?,
            epoch: gauge(
                &registry,
                "sluicegate_policy_epoch",
                "Number of the policy in force; starts at 1 and grows with each reload.",
            )?,
            reloads_loaded: loaded,
            reloads_refused: refused,
            reload_successful: gauge(
                &registry,
                "sluicegate_policy_last_reload_successful",
                "1 if the policy file's current content is in force, 0 if it was refused.",
            )?,
            reload_time: add(
                &registry,
                Gauge::new(
                    "sluicegate_policy_last_reload_success_timestamp_seconds",
                    "When the policy in force was loaded, seconds since 1970.",
                )?,
            )?,
            no_denials: DenialCounts::new()?,
            registry,
        })
    }

    /// Notes that a request asked for a limit that the policy does not have, and logs it if that is new. What cannot be a
    /// limit's name may be a secret.
    pub fn note_unknown_limit(&self, limit: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if is_name(limit) && unknown.note(limit.to_owned(), clock::monotonic()) {
            warn!(
                "requests ask for the limit {limit:?}, which the policy does not have: they get no verdict, and each rule's \
                 `when_unavailable` decides; compare rules and policy with `sluicegate check-config`"
            );
        }
    }

    /// The label value for a rule that sends shadow decisions: its name, or `other` beyond the bound.
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

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    add(registry, IntCounter::new(name, help)?)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    add(registry, IntGauge::new(name, help)?)
}

fn int_gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntGaugeVec> {
    add(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

/// Gauges of limits.
fn gauges(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<GaugeVec> {
    add(registry, GaugeVec::new(Opts::new(name, help), labels)?)
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
