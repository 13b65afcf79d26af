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
    /// Units that the store has granted.
    pub granted: IntCounter,
    /// Units spent so far.
    pub spent: IntCounter,
    /// Units that the store has taken back.
    pub returned: IntCounter,
    refused: BTreeMap<LeaseRefusal, IntCounter>,
    /// Units that no lease holds, and that are neither spent nor returned yet.
    on_the_way: AtomicU64,
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
            on_the_way: AtomicU64::new(0),
        }
    }

    /// Units that were on the way to decisions were spent.
    pub fn count_spent(&self, units: u64) {
        self.spent.inc_by(units);
        self.remove_on_the_way(units);
    }

    /// A key got no lease.
    pub fn count_refused(&self, refusal: LeaseRefusal) {
        if let Some(refused) = self.refused.get(&refusal) {
            refused.inc();
        }
    }

    /// Units have left their lease, for a decision or for the store.
    pub fn add_on_the_way(&self, units: u64) {
        self.on_the_way.fetch_add(units, Ordering::Relaxed);
    }

    /// They have arrived.
    pub fn remove_on_the_way(&self, units: u64) {
        self.on_the_way.fetch_sub(units, Ordering::Relaxed);
    }

    /// Units that are held, if the leases have so many.
    pub fn held(&self, leased: u64) -> u64 {
        leased.saturating_add(self.on_the_way.load(Ordering::Relaxed))
    }
}

impl PolicyMetrics {
    /// The metrics of a limit's leases, if the policy has leases for it.
    pub fn leases(&self, limit: &str) -> Option<Arc<LeaseMetrics>> {
        self.leases.get(limit).map(Arc::clone)
    }

    /// What leases hold and have spent, if a limit of the policy has leases; `held`: what they have, by limit.
    pub fn lease_totals(&self, held: &BTreeMap<String, u64>) -> Option<LeaseTotals> {
        let held_of = |limit: &String| held.get(limit).copied().unwrap_or(0);
        let held = self.leases.iter();
        let held = held.map(|(limit, of_limit)| of_limit.held(held_of(limit)));
        let spent = self.leases.values().map(|of_limit| of_limit.spent.get());
        (!self.leases.is_empty()).then(|| LeaseTotals {
            held: held.sum(),
            spent: spent.sum(),
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
