//! The metrics of one limit. They are looked up once per decision; counting an admitted decision usually takes no lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use prometheus::{Gauge, Histogram, IntCounter};
use sluicegate_protocol::{Check, LimitStatus, TopDenied, TopLimit, TopNearest, Verdict};

use super::families::Families;
use crate::telemetry::labels::{Outcome, Source};
use crate::telemetry::subject::Subject;
use crate::telemetry::top::{DenialCounts, DeniedSubject, Gate, NearSubject, Nearest, RecentKeys};

/// Counters of denials, by source.
#[derive(Debug)]
struct PerSource {
    store: IntCounter,
    share: IntCounter,
    certificate: IntCounter,
    filter: IntCounter,
    overridden: IntCounter,
}

impl PerSource {
    const fn of(&self, source: Source) -> &IntCounter {
        match source {
            // A lease never denies.
            Source::Store | Source::Request | Source::Lease => &self.store,
            Source::Share => &self.share,
            Source::Certificate => &self.certificate,
            Source::Filter => &self.filter,
            Source::Override => &self.overridden,
        }
    }
}

/// The metrics of one limit.
#[derive(Debug)]
pub struct LimitMetrics {
    limit: String,
    admitted: IntCounter,
    admitted_by_share: IntCounter,
    admitted_by_override: IntCounter,
    /// Only limits with leases have this series.
    admitted_by_lease: OnceLock<IntCounter>,
    denied: PerSource,
    shadow_admitted: IntCounter,
    shadow_denied: PerSource,
    unavailable: IntCounter,
    shadow_unavailable: IntCounter,
    refused_quotas: IntCounter,
    used: Histogram,
    nearest_ratio: Gauge,
    top_denied_ratio: Gauge,
    /// By the name of the shadow rule; replaced as a whole when a new rule appears.
    shadows: ArcSwap<BTreeMap<String, Arc<Shadow>>>,
    subjects: Mutex<Subjects>,
    gate: AtomicGate,
    /// A subject for which another limit decided, so that the state of this limit is unknown.
    sample: Mutex<Option<Sample>>,
    /// Whether `sample` has one.
    sampled: AtomicBool,
}

/// A subject that a check named.
#[derive(Debug)]
pub struct Sample {
    /// Its key.
    pub key: String,
    /// The quota that the check asked for.
    pub quota: Option<u64>,
}

/// The subjects to report.
#[derive(Debug)]
struct Subjects {
    denied: DenialCounts,
    nearest: Nearest,
    keys: RecentKeys,
}

/// Verdicts of this limit for the shadow decisions of one rule.
#[derive(Debug)]
struct Shadow {
    admitted: IntCounter,
    denied: IntCounter,
    unavailable: IntCounter,
}

/// A [`Gate`] that is read without a lock. Its two fields may be of different moments: then a subject is recorded
/// without need, or missed once.
#[derive(Debug)]
struct AtomicGate {
    ratio: AtomicU64,
    until_us: AtomicU64,
}

impl AtomicGate {
    fn excludes(&self, ratio: f64, now_us: u64) -> bool {
        now_us < self.until_us.load(Ordering::Relaxed)
            && ratio <= f64::from_bits(self.ratio.load(Ordering::Relaxed))
    }

    fn set(&self, gate: Gate) {
        self.ratio.store(gate.ratio.to_bits(), Ordering::Relaxed);
        self.until_us.store(gate.until_us, Ordering::Relaxed);
    }
}

impl LimitMetrics {
    /// Registers all series of a limit, at 0.
    pub(super) fn new(families: &Families, limit: &str) -> Self {
        let counter = |outcome: Outcome, source: Source| {
            families
                .decisions
                .with_label_values(&[limit, outcome.name(), source.name()])
        };
        let per_source = |outcome| PerSource {
            store: counter(outcome, Source::Store),
            share: counter(outcome, Source::Share),
            certificate: counter(outcome, Source::Certificate),
            filter: counter(outcome, Source::Filter),
            overridden: counter(outcome, Source::Override),
        };
        Self {
            limit: limit.to_owned(),
            admitted: counter(Outcome::Admitted, Source::Store),
            admitted_by_share: counter(Outcome::Admitted, Source::Share),
            admitted_by_override: counter(Outcome::Admitted, Source::Override),
            admitted_by_lease: OnceLock::new(),
            denied: per_source(Outcome::Denied),
            shadow_admitted: counter(Outcome::ShadowAdmitted, Source::Store),
            shadow_denied: per_source(Outcome::ShadowDenied),
            unavailable: counter(Outcome::Unavailable, Source::Store),
            shadow_unavailable: counter(Outcome::ShadowUnavailable, Source::Store),
            refused_quotas: families.refused_quotas.with_label_values(&[limit]),
            used: families.used.with_label_values(&[limit]),
            nearest_ratio: families.nearest_ratio.with_label_values(&[limit]),
            top_denied_ratio: families.top_denied_ratio.with_label_values(&[limit]),
            shadows: ArcSwap::default(),
            subjects: Mutex::new(Subjects {
                denied: families.no_denials.clone(),
                nearest: Nearest::default(),
                keys: RecentKeys::default(),
            }),
            gate: AtomicGate {
                ratio: AtomicU64::new(0),
                until_us: AtomicU64::new(0),
            },
            sample: Mutex::default(),
            sampled: AtomicBool::new(false),
        }
    }

    /// Whether these are the metrics of the limit `name`.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.limit == name
    }

    /// Adds the series of decisions made from leases.
    pub(super) fn count_leases(&self, families: &Families) {
        let labels = [
            self.limit.as_str(),
            Outcome::Admitted.name(),
            Source::Lease.name(),
        ];
        self.admitted_by_lease
            .get_or_init(|| families.decisions.with_label_values(&labels));
    }

    /// Counts a verdict about `key`, the key of the check that decided.
    pub(super) fn count(&self, verdict: &Verdict<'_>, source: Source, key: &str, now_us: u64) {
        match verdict {
            Verdict::Admitted(status) => {
                match source {
                    Source::Share => self.admitted_by_share.inc(),
                    Source::Override => {
                        // It took nothing, so it says nothing of how much is used.
                        self.admitted_by_override.inc();
                        return;
                    }
                    Source::Lease => {
                        if let Some(admitted) = self.admitted_by_lease.get() {
                            admitted.inc();
                        }
                    }
                    _ => self.admitted.inc(),
                }
                self.note(status, key, now_us);
            }
            Verdict::Denied(status) => {
                self.denied.of(source).inc();
                self.count_denials(Some(key), 1, now_us);
                if source == Source::Store {
                    self.note(status, key, now_us);
                }
            }
            Verdict::Unavailable { .. } => self.unavailable.inc(),
            // It has no limit.
            Verdict::Error(_) => {}
        }
    }

    /// Counts decisions that a filter made from a lease; their state is recorded once.
    pub(super) fn count_leased(
        &self,
        status: &LimitStatus<'_>,
        key: &str,
        decisions: u64,
        now_us: u64,
    ) {
        if let Some(admitted) = self.admitted_by_lease.get() {
            admitted.inc_by(decisions);
        }
        self.note(status, key, now_us);
    }

    /// Counts a quota that the policy does not accept.
    pub(super) fn count_refused_quota(&self) {
        self.refused_quotas.inc();
    }

    /// Counts the verdict of a shadow decision (evaluated, not enforced).
    pub(super) fn count_shadow(
        &self,
        families: &Families,
        rule: &str,
        verdict: &Verdict<'_>,
        source: Source,
    ) {
        let shadow = self.shadow(families, rule);
        match verdict {
            Verdict::Admitted(_) => {
                shadow.admitted.inc();
                match source {
                    Source::Store => self.shadow_admitted.inc(),
                    rare => {
                        let labels = [&self.limit, Outcome::ShadowAdmitted.name(), rare.name()];
                        families.decisions.with_label_values(&labels).inc();
                    }
                }
            }
            Verdict::Denied(_) => {
                shadow.denied.inc();
                self.shadow_denied.of(source).inc();
            }
            Verdict::Unavailable { .. } => {
                shadow.unavailable.inc();
                self.shadow_unavailable.inc();
            }
            Verdict::Error(_) => {}
        }
    }

    /// Counts denials that a filter answered from its cache.
    pub(super) fn count_filter_denials(&self, key: Option<&str>, count: u64, now_us: u64) {
        self.denied.filter.inc_by(count);
        self.count_denials(key, count, now_us);
    }

    fn count_denials(&self, key: Option<&str>, count: u64, now_us: u64) {
        let subject = key.map(Subject::of);
        let mut subjects = self.subjects();
        subjects.denied.count(subject, count, now_us);
        key.into_iter().for_each(|key| subjects.keys.keep(key));
    }

    /// The key with these digits, if it was denied or near the limit lately.
    pub(super) fn key_of(&self, digits: &str) -> Option<String> {
        self.subjects().keys.find(digits).map(str::to_owned)
    }

    /// Counts the cached denials of a shadow rule in a filter.
    pub(super) fn count_shadow_filter_denials(&self, families: &Families, rule: &str, count: u64) {
        self.shadow(families, rule).denied.inc_by(count);
        self.shadow_denied.filter.inc_by(count);
    }

    /// Updates the gauges about subjects to their values at `now_us`.
    pub(super) fn refresh(&self, now_us: u64) {
        let (total, denied, nearest) = {
            let mut subjects = self.subjects();
            let first = subjects.denied.top(now_us).first().copied();
            let nearest = subjects.nearest.top(now_us).first().copied();
            (subjects.denied.total(now_us), first, nearest)
        };
        // The lower bound: an alert on it must not fire because of the sketch's error.
        let least = denied.map_or(0, |one: DeniedSubject| one.count - one.error);
        self.top_denied_ratio.set(ratio(least, total));
        let nearest = nearest.map_or(0.0, |near: NearSubject| near.used_ratio);
        self.nearest_ratio.set(nearest);
    }

    /// The most denied subjects and those nearest to the limit.
    pub(super) fn top(&self, now_us: u64) -> TopLimit {
        let mut subjects = self.subjects();
        let most_denied = subjects
            .denied
            .top(now_us)
            .into_iter()
            .map(|one| TopDenied {
                subject: one.subject.to_string(),
                count: one.count,
                error: one.error,
            });
        let most_denied = most_denied.collect();
        let nearest = subjects
            .nearest
            .top(now_us)
            .into_iter()
            .map(|near| TopNearest {
                subject: near.subject.to_string(),
                used_ratio: near.used_ratio,
            });
        let nearest = nearest.collect();
        TopLimit {
            limit: self.limit.clone(),
            denied_total: subjects.denied.total(now_us),
            since_seconds: subjects.denied.span_us(now_us) / 1_000_000,
            most_denied,
            nearest,
        }
    }

    /// Keeps the first key after each [`LimitMetrics::take_sample`].
    pub(super) fn keep_sample(&self, check: &Check<'_>) {
        // Read before it is written: nearly always there is a key, and contended writes are slow.
        let sampled = &self.sampled;
        if !sampled.load(Ordering::Relaxed) && !sampled.swap(true, Ordering::Relaxed) {
            *self.sample() = Some(Sample {
                key: check.key.as_ref().to_owned(),
                quota: check.quota,
            });
        }
    }

    /// Takes the key that was kept.
    pub(super) fn take_sample(&self) -> Option<Sample> {
        let sample = self.sample().take();
        if sample.is_some() {
            self.sampled.store(false, Ordering::Relaxed);
        }
        sample
    }

    fn sample(&self) -> MutexGuard<'_, Option<Sample>> {
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how much of the quota a key's subject has used.
    pub(super) fn note(&self, status: &LimitStatus<'_>, key: &str, now_us: u64) {
        let used = status.quota.saturating_sub(status.remaining);
        let used = ratio(used, status.quota);
        self.used.observe(used);
        if !self.gate.excludes(used, now_us) {
            let mut subjects = self.subjects();
            self.gate.set(subjects.nearest.note(key, used, now_us));
            subjects.keys.keep(key);
        }
    }

    fn shadow(&self, families: &Families, rule: &str) -> Arc<Shadow> {
        if let Some(shadow) = self.shadows.load().get(rule) {
            return Arc::clone(shadow);
        }
        let name = families.shadow_rule(rule);
        let counter = |outcome: Outcome| {
            families
                .shadow_decisions
                .with_label_values(&[name, &self.limit, outcome.name()])
        };
        let shadow = Arc::new(Shadow {
            admitted: counter(Outcome::Admitted),
            denied: counter(Outcome::Denied),
            unavailable: counter(Outcome::Unavailable),
        });
        // Rules beyond the bound share `other` and are not kept, so that memory is bounded.
        if name == rule {
            self.shadows.rcu(|known| {
                let mut known = BTreeMap::clone(known);
                known.insert(rule.to_owned(), Arc::clone(&shadow));
                known
            });
        }
        shadow
    }

    fn subjects(&self) -> MutexGuard<'_, Subjects> {
        // The counts are consistent after every step, even if a thread panicked.
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    // Both are cut to 32 bits, which a float holds exactly.
    let cut = u64::BITS
        .saturating_sub(whole.leading_zeros())
        .saturating_sub(u32::BITS);
    let float = |number: u64| f64::from(u32::try_from(number >> cut).unwrap_or(u32::MAX));
    float(part) / float(whole)
}
