//! The Prometheus metrics and the most denied subjects. No label ever holds a key.
//!
//! | file | for |
//! |---|---|
//! | `metrics/families.rs` | the table of all metrics |
//! | `metrics/of_policy.rs` | counts the decisions of one policy |
//! | `metrics/limit.rs` | the metrics of one limit |
//! | `metrics/decisions.rs` | the counts of one limit's decisions |
//! | `metrics/leases.rs` | the metrics of one limit's leases |
//! | `metrics/slots.rs` | the metrics of one limit's slots |
//! | `metrics/windows.rs` | quotas and lengths of the limits' windows |

mod decisions;
mod families;
mod leases;
mod limit;
mod of_policy;
mod slots;
mod windows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus::process_collector::ProcessCollector;
use prometheus::{Encoder, Histogram, IntCounter, Registry, TextEncoder};
use sluicegate_protocol::{FilterInfo, Top};

use crate::clock;
use crate::lock::lock;
use crate::policy::Policy;
use crate::telemetry::history::{Counts, Failures};
use crate::telemetry::labels::{ConnectionCause, FailureKind, Outcome, ReloadOutcome, Source};
use crate::telemetry::recent::Recent;
use crate::telemetry::subject::Subject;
use crate::telemetry::top::RecentKeys;
use decisions::DecisionCounters;
use families::Families;
pub use leases::{LeaseMetrics, LeaseTotals};
use limit::LimitMetrics;
pub use of_policy::PolicyMetrics;
use of_policy::Shared;

/// The sidecar's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The table of all metrics.
    pub(crate) families: Families,
    /// Times of requests that the store decided, that a share decided in its place, and of the others: looked up once and not
    /// for each request.
    decision_seconds: [Histogram; 3],
    shared: Arc<Shared>,
    /// Of every limit that some policy has had.
    known: Mutex<Limits>,
    /// Of those in the policy in force.
    limits: Mutex<Limits>,
    /// Keys that were denied or near a limit last.
    keys: Arc<Mutex<RecentKeys>>,
    /// Version and configuration of the filters that ask.
    filters: Mutex<Recent<(String, String)>>,
    /// Held by a scrape: each removes series and makes them again, and counts what it finds new.
    scrape: Mutex<()>,
}

/// Metrics of limits, by name.
type Limits = BTreeMap<String, Arc<LimitMetrics>>;

/// What is known of a store besides its health.
#[derive(Clone, Debug, Default)]
pub struct StoreFacts {
    /// Connections that were made, by cause.
    pub connections: BTreeMap<ConnectionCause, u64>,
    /// How often a node was found to be another server than before.
    pub server_changes: u64,
    /// Nodes that may evict keys.
    pub evicting: u64,
    /// Keys that they evicted since this process knows them.
    pub evicted: u64,
    /// How long the last announcement took.
    pub round_trip: Duration,
}

impl Metrics {
    /// Registers all metrics. Series without a `limit` label start at 0.
    ///
    /// # Errors
    /// Two metrics have the same name, which would be a bug in `families.rs`.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let families = Families::register(&registry)?;
        // deploy/release/source sets it for the builds of a release.
        let commit = option_env!("SLUICEGATE_REVISION").unwrap_or("unknown");
        let build = [env!("CARGO_PKG_VERSION"), commit];
        families.build.with_label_values(&build).set(1.0);
        for kind in FailureKind::ALL {
            families.store_errors.with_label_values(&[kind.name()]);
        }
        for outcome in ReloadOutcome::ALL {
            families.reloads.with_label_values(&[outcome.name()]);
        }
        let without_limit = DecisionCounters::new(&families, "");
        without_limit.count(Outcome::Error, Source::Request, 0);
        let decision_seconds = [Source::Store, Source::Share, Source::Certificate].map(|source| {
            families
                .decision_seconds
                .with_label_values(&[source.name()])
        });
        Ok(Self {
            known: Mutex::default(),
            shared: Arc::new(Shared {
                without_limit,
                shadow_decisions: families.shadow_decisions.clone(),
                shadows: Mutex::default(),
                unknown: Mutex::default(),
            }),
            limits: Mutex::default(),
            keys: Arc::default(),
            filters: Mutex::default(),
            scrape: Mutex::default(),
            registry,
            families,
            decision_seconds,
        })
    }

    /// Records how long a caller waited for its verdicts, whether any of them needed the store, and whether a share decided it.
    pub fn observe_decision(&self, duration: Duration, store_asked: bool, by_share: bool) {
        let [store, share, neither] = &self.decision_seconds;
        let seconds = match (store_asked, by_share) {
            (_, true) => share,
            (true, false) => store,
            (false, false) => neither,
        };
        seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failed call to the store, or decisions that never reached the store.
    pub fn count_store_failure(&self, kind: FailureKind) {
        let errors = &self.families.store_errors;
        errors.with_label_values(&[kind.name()]).inc();
    }

    /// Records how many other limits, and other key prefixes, are in use on the same Redis.
    pub fn set_neighbours(&self, (limits, prefixes): (u64, u64)) {
        let neighbours = &self.families.neighbours;
        for (other, count) in [("limits", limits), ("prefixes", prefixes)] {
            neighbours.with_label_values(&[other]).set(count as f64);
        }
    }

    /// Records which policy is in force from now on, and returns its metrics. A limit that was removed keeps its
    /// counters, so that the last counts are still scraped. Its gauges, which would never change again, and its
    /// subjects are dropped.
    pub fn policy_loaded(&self, epoch: u64, policy: &Policy) -> PolicyMetrics {
        self.families.epoch.set(epoch as f64);
        self.families.reload_successful.set(1.0);
        let store_timeout = policy.store_timeout.as_secs_f64();
        self.families.store_timeout.set(store_timeout);
        let now = Duration::from_millis(clock::unix_ms());
        self.families.reload_time.set(now.as_secs_f64());
        if epoch > 1 {
            self.count_reload(ReloadOutcome::Loaded);
        }
        self.of_policy(policy)
    }

    /// The metrics of a policy's limits.
    pub fn of_policy(&self, policy: &Policy) -> PolicyMetrics {
        let mut known = lock(&self.known);
        let limits = policy.decided_limits().map(|limit| {
            let of_limit = known.entry(limit.name.clone()).or_insert_with(|| {
                let keys = Arc::clone(&self.keys);
                Arc::new(LimitMetrics::new(&self.families, &limit.name, keys))
            });
            if limit.lease.is_some() {
                of_limit.start_leases(&self.families);
            }
            if limit.expire_us().is_some() {
                of_limit.start_slots(&self.families);
            }
            (limit.name.clone(), Arc::clone(of_limit))
        });
        let limits: Limits = limits.collect();
        let others = known.iter().filter(|(name, _)| !limits.contains_key(*name));
        others.for_each(|(_, of_limit)| of_limit.forget_subjects());
        lock(&self.limits).clone_from(&limits);
        self.shared.know_shadows(policy);
        PolicyMetrics {
            shared: Arc::clone(&self.shared),
            limits,
        }
    }

    /// Records that the policy file was refused.
    pub fn policy_refused(&self) {
        self.families.reload_successful.set(0.0);
        self.count_reload(ReloadOutcome::Refused);
    }

    fn count_reload(&self, outcome: ReloadOutcome) {
        let reloads = &self.families.reloads;
        reloads.with_label_values(&[outcome.name()]).inc();
    }

    /// Notes which filter asks.
    pub fn filter_seen(&self, info: FilterInfo<'_>) {
        let pair = (info.version.to_owned(), info.configuration.to_owned());
        lock(&self.filters).note(pair, clock::monotonic());
    }

    /// The limits that requests asked for in the last minute and the policy in force does not have.
    pub fn unknown_limits(&self) -> Vec<String> {
        let known = lock(&self.limits);
        let mut unknown = lock(&self.shared.unknown);
        let asked_for = unknown.present(clock::monotonic());
        let asked_for = asked_for.filter(|name| !known.contains_key(*name));
        asked_for.cloned().collect()
    }

    /// Decisions so far, by limit.
    pub fn totals(&self) -> BTreeMap<String, Counts> {
        let known = lock(&self.known);
        let of_limits = known.values().map(|of_limit| &of_limit.decisions);
        let all = of_limits.chain([&self.shared.without_limit]);
        all.map(|decisions| (decisions.limit.clone(), decisions.counts()))
            .collect()
    }

    /// Failed store calls so far, by kind.
    pub fn store_failures(&self) -> Failures {
        let errors = &self.families.store_errors;
        let of_kind = |kind: &str| errors.with_label_values(&[kind]).get();
        let kinds = FailureKind::ALL.iter().map(|kind| kind.name());
        kinds.map(|kind| (kind, of_kind(kind))).collect()
    }

    /// The most denied and the nearest subjects of every limit in force.
    pub fn top(&self) -> Top {
        let now_us = clock::now_us();
        let limits = self.known().into_values();
        let limits = limits.map(|metrics| metrics.top(now_us)).collect();
        Top { limits }
    }

    /// Keeps the key of a bucket for the digits of what a filter has sent for it, which Envoy's access log shows.
    pub fn know_as(&self, sent: &str, key: &str) {
        lock(&self.keys).keep(Subject::of(sent), key);
    }

    /// The key with these digits, if a limit denied it or it was near a limit lately.
    pub fn key_of(&self, digits: &str) -> Option<String> {
        lock(&self.keys).find(digits).map(str::to_owned)
    }

    /// All metrics in Prometheus's text format. `policy`: the one in force; `slots`: those in use by limit.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn text(
        &self,
        policy: &Policy,
        store: &StoreFacts,
        slots: &BTreeMap<String, u64>,
    ) -> Result<Vec<u8>, prometheus::Error> {
        let _one_at_a_time = lock(&self.scrape);
        windows::set(&self.families, policy, clock::unix_ms());
        self.set_store(store);
        self.set_gauges_of_limits(policy, slots);
        self.set_filters();
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    fn set_store(&self, store: &StoreFacts) {
        let catch_up = |counter: &IntCounter, total: u64| {
            counter.inc_by(total.saturating_sub(counter.get()));
        };
        let families = &self.families;
        for cause in ConnectionCause::ALL {
            let made = families.connections_made.with_label_values(&[cause.name()]);
            catch_up(&made, store.connections.get(cause).copied().unwrap_or(0));
        }
        catch_up(&families.server_changes, store.server_changes);
        catch_up(&families.evicted_keys, store.evicted);
        families.evicting.set(store.evicting as f64);
        families.round_trip.set(store.round_trip.as_secs_f64());
    }

    /// Sets the gauges of limits and removes those of limits that the policy no longer has: of units that leases hold and of slots,
    /// with the last one.
    fn set_gauges_of_limits(&self, policy: &Policy, slots: &BTreeMap<String, u64>) {
        let unknown = self.unknown_limits().len();
        self.families.unknown_limits.set(unknown as f64);
        let (known, now_us) = (self.known(), clock::now_us());
        let ratios = &self.families.top_denied_ratio;
        ratios.reset();
        for (limit, metrics) in known.iter().filter(|(limit, _)| policy.has(limit)) {
            let ratio = ratios.with_label_values(&[limit]);
            ratio.set(metrics.top_denied_ratio(now_us));
        }
        let units = &self.families.lease_held;
        units.reset();
        let in_use = &self.families.slots_in_use;
        in_use.reset();
        for (limit, of_limit) in lock(&self.known).iter() {
            let held = of_limit.leases.get().map(|leases| leases.held());
            // Units may still be on the way when a reload ends them.
            if let Some(held) = held.filter(|held| *held > 0 || policy.has(limit)) {
                units.with_label_values(&[limit]).set(held as f64);
            }
            let used = slots.get(limit).copied();
            if used.is_some() || (of_limit.slots.get().is_some() && policy.has(limit)) {
                let used = used.unwrap_or_default();
                in_use.with_label_values(&[limit]).set(used as f64);
            }
        }
    }

    fn set_filters(&self) {
        let info = &self.families.filter_info;
        info.reset();
        for (version, configuration) in lock(&self.filters).present(clock::monotonic()) {
            info.with_label_values(&[version, configuration]).set(1.0);
        }
    }

    fn known(&self) -> Limits {
        lock(&self.limits).clone()
    }
}
