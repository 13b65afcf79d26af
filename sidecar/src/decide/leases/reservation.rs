//! Units of a decision that were taken from a lease: spent if the decision is admitted, else put back when they are dropped.

use std::sync::Arc;

use sluicegate_engine::lease::Taken;
use sluicegate_protocol::LimitStatus;

use super::{Lease, Leases};

/// Units that were taken from a lease. Dropping them puts them back: the decision was denied, or its caller has left.
#[derive(Debug)]
pub struct Reservation {
    leases: Arc<Leases>,
    lease: Arc<Lease>,
    ends_us: u64,
    /// Those that were not spent.
    units: u64,
    /// When they were taken.
    taken_us: u64,
    /// What was left in the lease, and what the store had left when it granted it.
    pub remaining: u64,
}

impl Reservation {
    /// The units of a check that were taken just now.
    pub(super) fn new(leases: &Arc<Leases>, taken: Taken<'_, Arc<Lease>>, taken_us: u64) -> Self {
        Self {
            leases: Arc::clone(leases),
            lease: Arc::clone(taken.tag),
            ends_us: taken.ends_us,
            units: taken.units,
            taken_us,
            remaining: taken.remaining,
        }
    }

    /// The status of its check, which has this index.
    pub fn status(&self, check: usize) -> Option<LimitStatus<'static>> {
        let status = self.lease.status(self.remaining, self.taken_us)?;
        Some(LimitStatus { check, ..status })
    }

    /// Whether the units may still be spent.
    pub fn is_live(&self, now_us: u64) -> bool {
        now_us < self.ends_us
    }

    /// Spends the units: the decision is admitted.
    pub fn spend(&mut self) {
        let units = std::mem::take(&mut self.units);
        self.lease.metrics.count_spent(units);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.units > 0 {
            self.leases.put_back(&self.lease, self.units);
        }
    }
}
