//! The Prometheus metrics and the most denied subjects. No label ever holds a key.
//!
//! | file | for |
//! |---|---|
//! | `metrics/families.rs` | every metric's name, help and buckets |
//! | `metrics/limit.rs` | the metrics of one limit |
//! | `metrics/leases.rs` | the metrics of one limit's leases |
//! | `metrics/windows.rs` | quotas and lengths of the limits' windows |
//! | `metrics/totals.rs` | counts of decisions so far, for the live page |

mod families;
mod leases;
mod limit;
mod totals;
mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{Encoder, TextEncoder};
use sluicegate_protocol::{CachedDenials, Check, Decision, FilterInfo, LimitStatus, Top, Verdict};

use crate::clock;
use crate::policy::Policy;
use crate::telemetry::filters::Filters;
use crate::telemetry::history::Counts;
use crate::telemetry::labels::{FailureKind, Outcome, Source};
use crate::telemetry::verdict::Decided;
use families::Families;
pub use families::MetricsError;
pub use leases::{LeaseMetrics, LeaseTotals};
use limit::LimitMetrics;
pub use limit::Sample;
use windows::WindowMetrics;

/// The sidecar's metrics.
#[derive(Debug)]
pub struct Metrics {
    families: Arc<Families>,
    /// The metrics of every limit in the policy in force.
    limits: Mutex<BTreeMap<String, Arc<LimitMetrics>>>,
    windows: WindowMetrics,
    /// The metrics of leases of every limit that has had some; units may still be on the way when a reload ends them.
    leases: Mutex<BTreeMap<String, Arc<LeaseMetrics>>>,
    filters: Mutex<Filters>,
}

/// Gauges that are not kept up to date but read at each scrape.
#[derive(Clone, Debug)]
pub struct GaugeReadings {
    /// Cached denials.
    pub certificates: usize,
    /// Sidecars that share the store; 0 if unknown.
    pub sidecars: usize,
    /// Buckets whose units have not been written back to the store yet.
    pub unwritten: usize,
    /// Overrides in force.
    pub overrides: OverrideCounts,
    /// Units that leases hold, by limit.
    pub leased: BTreeMap<String, u64>,
    /// Tasks of the runtime that have not ended.
    pub tasks: usize,
}

/// How many overrides are in force, by what they allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverrideCounts {
    /// Other quotas.
    pub quota: usize,
    /// Everything.
    pub unlimited: usize,
    /// Nothing.
    pub blocked: usize,
}

/// The metrics of the limits of one policy. Each policy carries its own, so that a decision finds them without a lock.
#[derive(Debug)]
pub struct PolicyMetrics {
    families: Arc<Families>,
    limits: BTreeMap<String, Arc<LimitMetrics>>,
    /// Of the limits with leases.
    leases: BTreeMap<String, Arc<LeaseMetrics>>,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// Two metrics have the same name, which would be a bug in `families.rs`.
    pub fn new() -> Result<Self, MetricsError> {
        Ok(Self {
            families: Arc::new(Families::new()?),
            limits: Mutex::default(),
            windows: WindowMetrics::default(),
            leases: Mutex::default(),
            filters: Mutex::default(),
        })
    }

    /// Records how long a call to the store took, whether or not it succeeded.
    pub fn observe_store_call(&self, duration: Duration) {
        self.families.store_seconds.observe(duration.as_secs_f64());
    }

    /// Records how many decisions one store call carries.
    pub fn observe_batch(&self, decisions: usize) {
        self.families
            .batch_decisions
            .observe(u32::try_from(decisions).unwrap_or(u32::MAX).into());
    }

    /// Records how long a caller waited before its first decision went to the store.
    pub fn observe_queue_wait(&self, duration: Duration) {
        self.families.queue_seconds.observe(duration.as_secs_f64());
    }

    /// Records how long a caller waited for its verdicts, and whether any of them needed the store.
    pub fn observe_decision(&self, duration: Duration, store_asked: bool) {
        let seconds = if store_asked {
            &self.families.decision_seconds_store
        } else {
            &self.families.decision_seconds_certificate
        };
        seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failed call to the store, or decisions that never reached the store.
    pub fn count_store_failure(&self, kind: FailureKind) {
        let errors = &self.families.store_errors;
        errors.with_label_values(&[kind.name()]).inc();
    }

    /// Records whether the store is up.
    pub fn set_store_up(&self, up: bool) {
        self.families.store_up.set(up.into());
    }

    /// Records which policy is in force from now on, and returns its metrics. A limit that was removed keeps its
    /// counters, so that the last counts are still scraped. Its gauges, which would never change again, and its
    /// subjects are dropped.
    pub fn policy_loaded(&self, epoch: u64, policy: &Policy) -> PolicyMetrics {
        self.families
            .epoch
            .set(i64::try_from(epoch).unwrap_or(i64::MAX));
        self.families.reload_successful.set(1);
        let unix_ms = clock::unix_ms();
        let now = Duration::from_millis(unix_ms);
        self.families.reload_time.set(now.as_secs_f64());
        self.windows.policy_loaded(&self.families, policy, unix_ms);
        if epoch > 1 {
            self.families.reloads_loaded.inc();
        }
        let mut known = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = BTreeMap::new();
        for limit in policy.limits() {
            let limit_metrics = known
                .remove(&limit.name)
                .unwrap_or_else(|| Arc::new(LimitMetrics::new(&self.families, &limit.name)));
            limits.insert(limit.name.clone(), limit_metrics);
        }
        for gone in known.keys() {
            // An error means that the series does not exist, which is the goal.
            let _ = self.families.nearest_ratio.remove_label_values(&[gone]);
            let _ = self.families.top_denied_ratio.remove_label_values(&[gone]);
        }
        known.clone_from(&limits);
        let leased = policy.limits().filter(|limit| limit.lease.is_some());
        let leased = leased.map(|limit| {
            if let Some(limit_metrics) = limits.get(&limit.name) {
                limit_metrics.count_leases(&self.families);
            }
            (limit.name.clone(), self.leases_of(&limit.name))
        });
        PolicyMetrics {
            families: Arc::clone(&self.families),
            leases: leased.collect(),
            limits,
        }
    }

    fn leases_of(&self, limit: &str) -> Arc<LeaseMetrics> {
        let mut known = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let of_limit = known.entry(limit.to_owned());
        Arc::clone(of_limit.or_insert_with(|| Arc::new(LeaseMetrics::new(&self.families, limit))))
    }

    /// Notes which filter asks.
    pub fn filter_seen(&self, info: FilterInfo<'_>) {
        let now = Duration::from_micros(clock::now_us());
        self.filters().note(info, now);
    }

    fn filters(&self) -> MutexGuard<'_, Filters> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the policy file was refused.
    pub fn policy_refused(&self) {
        self.families.reload_successful.set(0);
        self.families.reloads_refused.inc();
    }

    /// Decisions so far, by limit.
    pub fn totals(&self) -> BTreeMap<String, Counts> {
        totals::by_limit(&self.families.decisions.collect())
    }

    /// The most denied and the nearest subjects of every limit in force.
    pub fn top(&self) -> Top {
        let now_us = clock::now_us();
        Top {
            limits: self
                .known()
                .iter()
                .map(|limit_metrics| limit_metrics.top(now_us))
                .collect(),
        }
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn text(&self, readings: GaugeReadings) -> Result<Vec<u8>, prometheus::Error> {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.families.certificates.set(gauge(readings.certificates));
        self.families.sidecars.set(gauge(readings.sidecars));
        self.families.unwritten.set(gauge(readings.unwritten));
        self.families.tasks.set(gauge(readings.tasks));
        let OverrideCounts {
            quota,
            unlimited,
            blocked,
        } = readings.overrides;
        for (allowance, count) in [
            ("quota", quota),
            ("unlimited", unlimited),
            ("blocked", blocked),
        ] {
            let overrides = self.families.overrides.with_label_values(&[allowance]);
            overrides.set(gauge(count));
        }
        let now_us = clock::now_us();
        let known = self.known();
        for limit_metrics in &known {
            limit_metrics.refresh(now_us);
        }
        self.refresh_leases(&readings.leased, &known);
        self.windows.refresh(&self.families, clock::unix_ms());
        self.families.filter_info.reset();
        for (version, configuration) in self.filters().present(Duration::from_micros(now_us)) {
            let info = &self.families.filter_info;
            info.with_label_values(&[version, configuration]).set(1);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.families.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Sets the gauges of units that are held. That of a limit that the policy no longer has goes with its last unit.
    fn refresh_leases(&self, leased: &BTreeMap<String, u64>, known: &[Arc<LimitMetrics>]) {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|limit, lease_metrics| {
            let held = leased.get(limit).copied().unwrap_or(0);
            lease_metrics.set_held(held);
            let stays = held > 0 || known.iter().any(|known| known.is_of(limit));
            if !stays {
                // An error means that the series does not exist, which is the goal.
                let _ = self.families.lease_held.remove_label_values(&[limit]);
            }
            stays
        });
    }

    fn known(&self) -> Vec<Arc<LimitMetrics>> {
        let known = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(Arc::clone).collect()
    }
}

impl PolicyMetrics {
    /// Counts one verdict; `decision` is `None` if the request could not be parsed. A peek is not a decision: of it, only the
    /// state that it found is noted.
    pub fn count(&self, decided: &Decided<'_>, decision: Option<&Decision<'_>>, now_us: u64) {
        if let Some(decision) = decision.filter(|decision| decision.peek) {
            if decided.source == Source::Store {
                let key = deciding_key(&decided.verdict, &decision.checks);
                self.note(&decided.verdict, key, now_us);
            }
            return;
        }
        let shadow = decision.and_then(|decision| decision.shadow.as_deref());
        let Some(limit_metrics) = self.limits.get(decided.limit) else {
            self.count_verdict_without_limit(decided, shadow);
            return;
        };
        match shadow {
            Some(rule) => {
                limit_metrics.count_shadow(&self.families, rule, &decided.verdict, decided.source)
            }
            None => {
                let checks = decision.map_or(&[][..], |decision| &decision.checks);
                let key = deciding_key(&decided.verdict, checks);
                limit_metrics.count(&decided.verdict, decided.source, key, now_us);
                if decided.source == Source::Store {
                    self.sample(checks, decided.limit);
                }
            }
        }
    }

    /// A verdict has the state of one limit only, the one that decided. Of each other limit, which may be almost used
    /// up, one key is kept and peeked at later.
    fn sample(&self, checks: &[Check<'_>], decided_by: &str) {
        for check in checks.iter().filter(|check| check.limit != decided_by) {
            if let Some(limit_metrics) = self.limits.get(check.limit.as_ref()) {
                limit_metrics.keep_sample(check);
            }
        }
    }

    /// Limits whose state no recent verdict reported, with a key each. The caller peeks at them about once a second
    /// and hands the answers to [`PolicyMetrics::note`].
    pub fn samples(&self) -> Vec<(&str, Sample)> {
        let known = self.limits.iter();
        known
            .filter_map(|(limit, limit_metrics)| {
                Some((limit.as_str(), limit_metrics.take_sample()?))
            })
            .collect()
    }

    /// Notes how a limit stands for a key; a look, and so not counted among the decisions.
    pub fn note(&self, verdict: &Verdict<'_>, key: &str, now_us: u64) {
        if let Some(status) = limit_status(verdict)
            && let Some(limit_metrics) = self.limits.get(status.limit.as_ref())
        {
            limit_metrics.note(status, key, now_us);
        }
    }

    /// Counts a quota that a request asked for and the limit's policy does not accept.
    pub fn count_refused_quota(&self, limit: &str) {
        if let Some(limit_metrics) = self.limits.get(limit) {
            limit_metrics.count_refused_quota();
        }
    }

    /// Counts denials that a filter answered from its cache. A limit that the policy does not have, for example because
    /// a reload removed it, is counted without its name: only the policy's names become labels.
    pub fn count_filter_denials(&self, denied: &CachedDenials<'_>, now_us: u64) {
        let limit_metrics = self.limits.get(denied.limit.as_ref());
        match (limit_metrics, denied.shadow.as_deref()) {
            (Some(limit_metrics), None) => {
                limit_metrics.count_filter_denials(denied.key.as_deref(), denied.count, now_us);
            }
            (Some(limit_metrics), Some(rule)) => {
                limit_metrics.count_shadow_filter_denials(&self.families, rule, denied.count);
            }
            (None, shadow) => {
                self.count_without_limit(shadow, Outcome::Denied, Source::Filter, denied.count);
            }
        }
    }

    /// Nearly always an error: other verdicts have a limit.
    fn count_verdict_without_limit(&self, decided: &Decided<'_>, shadow: Option<&str>) {
        self.count_without_limit(shadow, (&decided.verdict).into(), decided.source, 1);
    }

    fn count_without_limit(
        &self,
        shadow: Option<&str>,
        outcome: Outcome,
        source: Source,
        count: u64,
    ) {
        let mut counted = outcome;
        if let Some(rule) = shadow {
            counted = outcome.as_shadow();
            let rule = self.families.shadow_rule(rule);
            self.families
                .shadow_decisions
                .with_label_values(&[rule, "", outcome.name()])
                .inc_by(count);
        }
        self.families
            .decisions
            .with_label_values(&["", counted.name(), source.name()])
            .inc_by(count);
    }
}

/// The key of the check that decided.
fn deciding_key<'a>(verdict: &Verdict<'_>, checks: &'a [Check<'_>]) -> &'a str {
    let check = limit_status(verdict).and_then(|status| checks.get(status.check));
    check.map_or("", |check| check.key.as_ref())
}

/// How the window that decided stands.
const fn limit_status<'a, 'b>(verdict: &'a Verdict<'b>) -> Option<&'a LimitStatus<'b>> {
    match verdict {
        Verdict::Admitted(status) | Verdict::Denied(status) => Some(status),
        Verdict::Unavailable { .. } | Verdict::Error { .. } => None,
    }
}
