//! The metrics of one limit's leases: units granted, spent, returned and held, and the keys that got none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::IntCounter;
use serde::Serialize;
use sluicegate_engine::lease::LeaseRefusal;
use sluicegate_protocol::LimitStatus;

use super::PolicyMetrics;
use super::families::Families;
use crate::telemetry::labels::{LEASE_REFUSALS, Outcome, Source};

/// All leases of a sidecar, for the live page.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LeaseTotals {
    /// Units that are held.
    pub held: u64,
    /// Units spent since the start.
    pub spent: u64,
}

/// The metrics of one limit's leases.
#[derive(Debug)]
pub struct LeaseMetrics {
    granted: IntCounter,
    /// Units spent so far.
    pub spent: IntCounter,
    returned: IntCounter,
    refused: BTreeMap<LeaseRefusal, IntCounter>,
    /// Units that are neither spent nor returned yet.
    held: AtomicU64,
}

impl LeaseMetrics {
    /// Registers all series, at 0.
    pub(super) fn new(families: &Families, limit: &str) -> Self {
        let units = |event| families.lease_units.with_label_values(&[limit, event]);
        let refused = LEASE_REFUSALS.map(|(refusal, name)| {
            let refusals = &families.lease_refusals;
            (refusal, refusals.with_label_values(&[limit, name]))
        });
        Self {
            granted: units("granted"),
            spent: units("spent"),
            returned: units("returned"),
            refused: refused.into(),
            held: AtomicU64::new(0),
        }
    }

    /// The store has granted units.
    pub fn count_granted(&self, units: u64) {
        self.granted.inc_by(units);
        self.held.fetch_add(units, Ordering::Relaxed);
    }

    /// Units were spent.
    pub fn count_spent(&self, units: u64) {
        self.spent.inc_by(units);
        self.held.fetch_sub(units, Ordering::Relaxed);
    }

    /// Units have left their lease for the store, which has taken so many of them back: the others count there for one window.
    pub fn count_returned(&self, units: u64, taken_back: u64) {
        self.returned.inc_by(taken_back);
        self.held.fetch_sub(units, Ordering::Relaxed);
    }

    /// A key got no lease.
    pub fn count_refused(&self, refusal: LeaseRefusal) {
        if let Some(refused) = self.refused.get(&refusal) {
            refused.inc();
        }
    }

    /// Units that are held.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl PolicyMetrics {
    /// The metrics of a limit's leases, if the policy has leases for it.
    pub fn leases(&self, limit: &str) -> Option<Arc<LeaseMetrics>> {
        self.limits.get(limit)?.leases.get().map(Arc::clone)
    }

    /// What leases hold and have spent, if a limit of the policy has leases.
    pub fn lease_totals(&self) -> Option<LeaseTotals> {
        let of_limits = self.limits.values();
        let leases: Vec<_> = of_limits.filter_map(|limit| limit.leases.get()).collect();
        (!leases.is_empty()).then(|| LeaseTotals {
            held: leases.iter().map(|leases| leases.held()).sum(),
            spent: leases.iter().map(|leases| leases.spent.get()).sum(),
        })
    }

    /// Counts decisions that a filter made from a lease. `status`: how the limit stands for `key` after them.
    pub fn count_leased(&self, status: &LimitStatus<'_>, key: &str, decisions: u64, now_us: u64) {
        if let Some(limit_metrics) = self.limits.get(status.limit.as_ref()) {
            let counters = &limit_metrics.decisions;
            counters.count(Outcome::Admitted, Source::Lease, decisions);
            // The state after all of them.
            limit_metrics.note(status, key, now_us);
        }
    }
}
