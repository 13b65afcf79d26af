//! The Prometheus metrics and the most denied subjects. No label ever holds a key.
//!
//! | file | for |
//! |---|---|
//! | `metrics/families.rs` | every metric's name, help and buckets |
//! | `metrics/of_policy.rs` | counts the decisions of one policy |
//! | `metrics/limit.rs` | the metrics of one limit |
//! | `metrics/leases.rs` | the metrics of one limit's leases |
//! | `metrics/windows.rs` | quotas and lengths of the limits' windows |
//! | `metrics/totals.rs` | counts of decisions so far, for the live page |

mod families;
mod leases;
mod limit;
mod of_policy;
mod totals;
mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{Encoder, IntCounter, TextEncoder};
use sluicegate_protocol::{FilterInfo, Top};

use crate::clock;
use crate::policy::Policy;
use crate::telemetry::history::{Counts, Failures};
use crate::telemetry::labels::{ConnectionCause, FailureKind};
use crate::telemetry::recent::Recent;
use families::Families;
pub use families::MetricsError;
pub use leases::{LeaseMetrics, LeaseTotals};
use limit::LimitMetrics;
pub use of_policy::PolicyMetrics;
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
    /// Version and configuration of the filters that ask.
    filters: Mutex<Recent<(String, String)>>,
}

/// Gauges that are not kept up to date but read at each scrape.
#[derive(Clone, Debug)]
pub struct GaugeReadings {
    /// Cached denials.
    pub certificates: usize,
    /// Sidecars that divide the limits among them; 0 if unknown.
    pub sidecars: usize,
    /// What is known of the store.
    pub store: StoreFacts,
    /// How far its clock is ahead of this host's, in microseconds, if known.
    pub clock_ahead_us: Option<i64>,
    /// Buckets whose units have not been written back to the store yet.
    pub unwritten: usize,
    /// Overrides in force.
    pub overrides: OverrideCounts,
    /// Units that leases hold, by limit.
    pub leased: BTreeMap<String, u64>,
    /// Tasks of the runtime that have not ended.
    pub tasks: usize,
}

/// What is known of a store besides its health.
#[derive(Clone, Debug, Default)]
pub struct StoreFacts {
    /// Connections that were made, by cause.
    pub connections: Vec<(ConnectionCause, u64)>,
    /// How often a node was found to be another server than before.
    pub server_changes: u64,
    /// Nodes that may evict keys.
    pub evicting: u64,
    /// Keys that they evicted since this process knows them.
    pub evicted: u64,
    /// How long the last announcement took.
    pub round_trip: Duration,
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

    /// Records how many other limits, and other key prefixes, are in use on the same Redis.
    pub fn set_neighbours(&self, (limits, prefixes): (u64, u64)) {
        let family = |other| self.families.neighbours.with_label_values(&[other]);
        family("limits").set(limits as f64);
        family("prefixes").set(prefixes as f64);
    }

    /// Counts overrides that the store has lost, or has again.
    pub fn count_lost_overrides(&self, count: usize) {
        self.families.overrides_lost.inc_by(count as u64);
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
            drop_series(&self.families.top_denied_ratio, gone);
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
        let pair = (info.version.to_owned(), info.configuration.to_owned());
        self.filters().note(pair, clock::monotonic());
    }

    fn filters(&self) -> MutexGuard<'_, Recent<(String, String)>> {
        self.filters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits that requests asked for in the last minute and the policy in force does not have.
    pub fn unknown_limits(&self) -> Vec<String> {
        let known = self.known();
        let unknown = self.families.unknown.lock();
        let mut unknown = unknown.unwrap_or_else(PoisonError::into_inner);
        let asked_for = unknown.present(clock::monotonic());
        let asked_for = asked_for.filter(|name| !known.iter().any(|known| known.is_of(name)));
        asked_for.cloned().collect()
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

    /// Failed store calls so far, by kind.
    pub fn store_failures(&self) -> Failures {
        let of_kind = |kind: FailureKind| {
            self.families
                .store_errors
                .with_label_values(&[kind.name()])
                .get()
        };
        let kinds = FailureKind::ALL.iter();
        kinds.map(|kind| (kind.name(), of_kind(*kind))).collect()
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

    /// The key with these digits, if a limit denied it or it was near a limit lately.
    pub fn key_of(&self, digits: &str) -> Option<String> {
        let known = self.known();
        known.iter().find_map(|metrics| metrics.key_of(digits))
    }

    fn note_store(&self, store: &StoreFacts) {
        let catch_up = |counter: &IntCounter, total: u64| {
            counter.inc_by(total.saturating_sub(counter.get()));
        };
        // One scrape at a time: two would count the same connections.
        let _one = self.filters();
        for (cause, total) in &store.connections {
            let connections = &self.families.connections_made;
            catch_up(&connections.with_label_values(&[cause.name()]), *total);
        }
        catch_up(&self.families.server_changes, store.server_changes);
        catch_up(&self.families.evicted_keys, store.evicted);
        let evicting = i64::try_from(store.evicting).unwrap_or(i64::MAX);
        self.families.evicting.set(evicting);
        let round_trip = store.round_trip.as_secs_f64();
        self.families.round_trip.set(round_trip);
    }

    /// All metrics in Prometheus's text format.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn text(&self, readings: GaugeReadings) -> Result<Vec<u8>, prometheus::Error> {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.families.certificates.set(gauge(readings.certificates));
        self.families.sidecars.set(gauge(readings.sidecars));
        self.note_store(&readings.store);
        if let Some(ahead_us) = readings.clock_ahead_us {
            let clock = &self.families.store_clock_ahead;
            clock.set(ahead_us as f64 / 1e6);
        }
        self.families.unwritten.set(gauge(readings.unwritten));
        self.families.tasks.set(gauge(readings.tasks));
        let unknown_limits = gauge(self.unknown_limits().len());
        self.families.unknown_limits.set(unknown_limits);
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
        for (version, configuration) in self.filters().present(clock::monotonic()) {
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
                drop_series(&self.families.lease_held, limit);
            }
            stays
        });
    }

    fn known(&self) -> Vec<Arc<LimitMetrics>> {
        let known = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(Arc::clone).collect()
    }
}

/// Drops a limit's series.
fn drop_series<T: MetricVecBuilder>(series: &MetricVec<T>, limit: &str) {
    // An error means that it does not exist, which is the goal.
    let _ = series.remove_label_values(&[limit]);
}
