//! Units of a decision that were taken from a lease: spent if the decision is admitted, else put back when they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Lease, Leases};
use crate::policy::Limit;

/// How a check that a lease decides stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The quota of the tightest window when the lease was granted.
    pub quota: u64,
    /// The length of that window.
    pub window_ms: u64,
    /// What is left in the lease, and what the store had left when it granted it.
    pub remaining: u64,
    /// Until the whole quota is available again.
    pub reset_ms: u64,
}

/// Units that were taken from a lease. Dropping them puts them back: the decision was denied, or its caller has left.
#[derive(Debug)]
pub struct Reservation {
    leases: Arc<Leases>,
    lease: Arc<Lease>,
    ends_us: u64,
    units: u64,
    spent: AtomicBool,
    /// For the verdict.
    pub leased: Leased,
}

impl Reservation {
    pub(super) fn new(
        leases: &Arc<Leases>,
        units: u64,
        ends_us: u64,
        leased: Leased,
        lease: Arc<Lease>,
    ) -> Self {
        lease.metrics.add_on_the_way(units);
        Self {
            leases: Arc::clone(leases),
            lease,
            ends_us,
            units,
            spent: AtomicBool::new(false),
            leased,
        }
    }

    /// Its limit.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.lease.limit
    }

    /// Whether the units may still be spent.
    pub fn is_live(&self, now_us: u64) -> bool {
        now_us < self.ends_us
    }

    /// Spends the units: the decision is admitted.
    pub fn spend(&self) {
        if !self.spent.swap(true, Ordering::Relaxed) {
            self.lease.metrics.count_spent(self.units);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if *self.spent.get_mut() {
            return;
        }
        self.leases.put_back(&self.lease, self.units);
    }
}
