//! The metrics of one limit. They are looked up once per decision.

use std::sync::{Arc, Mutex, OnceLock};

use prometheus::{Histogram, IntCounter};
use sluicegate_protocol::{LimitStatus, Settled, TopLimit, Verdict};

use super::decisions::DecisionCounters;
use super::families::Families;
use super::leases::LeaseMetrics;
use super::lock;
use super::slots::SlotMetrics;
use crate::policy::consumer_of;
use crate::telemetry::labels::{Outcome, SettleOutcome, Source};
use crate::telemetry::subject::Subject;
use crate::telemetry::top::{DenialCounts, Nearest, RecentKeys, Reserves};

/// The metrics of one limit.
#[derive(Debug)]
pub struct LimitMetrics {
    pub(super) decisions: DecisionCounters,
    pub(super) refused_quotas: IntCounter,
    returned: SettleCounters,
    charged: SettleCounters,
    used_units: IntCounter,
    unknown_settles: IntCounter,
    /// If a policy has had leases for it.
    pub(super) leases: OnceLock<Arc<LeaseMetrics>>,
    /// If a policy has had it count slots.
    pub(super) slots: OnceLock<Arc<SlotMetrics>>,
    used: Histogram,
    subjects: Mutex<Subjects>,
    /// Of all limits.
    keys: Arc<Mutex<RecentKeys>>,
}

/// Settles of one outcome, and their units.
#[derive(Debug)]
struct SettleCounters {
    settles: IntCounter,
    units: IntCounter,
}

impl SettleCounters {
    fn new(families: &Families, limit: &str, outcome: SettleOutcome) -> Self {
        let labels = [limit, outcome.name()];
        Self {
            settles: families.settles.with_label_values(&labels),
            units: families.settled_units.with_label_values(&labels),
        }
    }

    fn count(&self, units: u64) {
        self.settles.inc();
        self.units.inc_by(units);
    }
}

/// The subjects to report.
#[derive(Debug, Default)]
struct Subjects {
    denied: DenialCounts,
    nearest: Nearest,
    reserves: Reserves,
}

impl LimitMetrics {
    /// Makes the series of a limit, at 0.
    pub(super) fn new(families: &Families, limit: &str, keys: Arc<Mutex<RecentKeys>>) -> Self {
        let decisions = DecisionCounters::new(families, limit);
        decisions.start();
        Self {
            decisions,
            refused_quotas: families.refused_quotas.with_label_values(&[limit]),
            returned: SettleCounters::new(families, limit, SettleOutcome::Returned),
            charged: SettleCounters::new(families, limit, SettleOutcome::Charged),
            used_units: families
                .settled_units
                .with_label_values(&[limit, SettleOutcome::Used.name()]),
            unknown_settles: families
                .settles
                .with_label_values(&[limit, SettleOutcome::Unknown.name()]),
            leases: OnceLock::new(),
            slots: OnceLock::new(),
            used: families.used.with_label_values(&[limit]),
            subjects: Mutex::default(),
            keys,
        }
    }

    /// Makes the series of its leases, at 0.
    pub(super) fn start_leases(&self, families: &Families) {
        let new = || Arc::new(LeaseMetrics::new(families, &self.decisions.limit));
        self.leases.get_or_init(new);
        self.decisions.count(Outcome::Admitted, Source::Lease, 0);
    }

    /// Makes the series of its slots, at 0.
    pub(super) fn start_slots(&self, families: &Families) {
        let new = || Arc::new(SlotMetrics::new(families, &self.decisions.limit));
        self.slots.get_or_init(new);
    }

    /// The policy does not have it any more.
    pub(super) fn forget_subjects(&self) {
        *lock(&self.subjects) = Subjects::default();
    }

    /// Counts a verdict about `key`, the key of the check that decided.
    pub(super) fn count(&self, verdict: &Verdict<'_>, source: Source, key: &str, now_us: u64) {
        self.decisions.count(verdict.into(), source, 1);
        match verdict {
            // An override took nothing, so it says nothing of how much is used.
            Verdict::Admitted(status) if source != Source::Override => {
                self.note(status, key, now_us);
            }
            Verdict::Denied(status) => {
                self.count_denials(Some(key), 1, now_us);
                if source == Source::Store {
                    self.note(status, key, now_us);
                }
            }
            _ => {}
        }
    }

    /// Counts what became of a receipt that was settled with so many units.
    pub(super) fn count_settled(&self, settled: &Settled, used: u64, now_us: u64) {
        let reserved = match settled {
            Settled::Returned { units } => {
                self.returned.count(*units);
                used.saturating_add(*units)
            }
            Settled::Charged { units } => {
                self.charged.count(*units);
                used.saturating_sub(*units)
            }
            Settled::Unknown => return self.unknown_settles.inc(),
            Settled::Renewed | Settled::Unavailable | Settled::Error(_) => return,
        };
        self.used_units.inc_by(used);
        lock(&self.subjects).reserves.count(reserved, used, now_us);
    }

    /// Counts denials of a key, if it is known, for [`LimitMetrics::top`].
    pub(super) fn count_denials(&self, key: Option<&str>, count: u64, now_us: u64) {
        let subject = key.map(Subject::of);
        lock(&self.subjects).denied.count(subject, count, now_us);
        if let (Some(subject), Some(key)) = (subject, key) {
            lock(&self.keys).keep(subject, key);
        }
    }

    /// Records how much of the quota a key's subject has used.
    pub(super) fn note(&self, status: &LimitStatus<'_>, key: &str, now_us: u64) {
        let used = status.quota.saturating_sub(status.remaining) + status.over;
        let used = ratio(used, status.quota);
        self.used.observe(used);
        if lock(&self.subjects).nearest.note(key, used, now_us) {
            lock(&self.keys).keep(Subject::of(key), key);
        }
    }

    /// The most denied subject's share of the denials: its lower bound, since an alert on it must not fire because of the
    /// sketch's error.
    pub(super) fn top_denied_ratio(&self, now_us: u64) -> f64 {
        let mut subjects = lock(&self.subjects);
        let top = subjects.denied.top(now_us);
        let least = top.first().map(|one| one.count - one.error);
        ratio(least.unwrap_or(0), subjects.denied.total(now_us))
    }

    /// The most denied subjects and those nearest to the limit.
    pub(super) fn top(&self, now_us: u64) -> TopLimit {
        let mut subjects = lock(&self.subjects);
        let mut most_denied = subjects.denied.top(now_us);
        let denied_total = subjects.denied.total(now_us);
        let keys = lock(&self.keys);
        for one in &mut most_denied {
            let key = keys.find(&one.subject);
            one.consumer = key.and_then(consumer_of).map(str::to_owned);
        }
        TopLimit {
            limit: self.decisions.limit.clone(),
            most_denied,
            nearest: subjects.nearest.top(now_us),
            reserves: subjects.reserves.top(denied_total, now_us),
            denied_total,
            since_seconds: subjects.denied.span_us(now_us) / 1_000_000,
        }
    }
}

/// Quotas are under 2^53, where doubles are exact; of more denials, a few more or less do not show.
const fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}
