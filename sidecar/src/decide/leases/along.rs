//! A lease that a question's own call of the store takes along: the first for a key costs no call of its own.

use std::sync::Arc;

use sluicegate_engine::lease::EndedLease;
use sluicegate_engine::{BatchBuilder, Outcome};

use super::{Command, Lease, LeaseKey, Leases};
use crate::clock;
use crate::decide::effective::EffectiveCheck;
use crate::telemetry::metrics::PolicyMetrics;

/// Where decisions find leases.
#[derive(Clone, Copy)]
pub struct LeaseBasis<'a> {
    /// The leases.
    pub leases: &'a Arc<Leases>,
    /// The epoch of the request.
    pub epoch: u64,
    /// Its metrics.
    pub metrics: &'a PolicyMetrics,
    /// The clock of the store that keeps a bucket, in microseconds, if it is known.
    pub store_us: &'a (dyn Fn(&str) -> Option<u64> + Sync),
}

impl std::fmt::Debug for LeaseBasis<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.leases.fmt(f)
    }
}

/// A lease that is asked for. If it is dropped before its outcome is known, the caller has left: what the store grants is returned.
#[derive(Debug)]
pub struct Along {
    leases: Arc<Leases>,
    lease: Option<Lease>,
    /// Before the call was sent.
    sent_us: u64,
    /// Its index in the batch.
    batch_index: usize,
}

impl LeaseBasis<'_> {
    /// A lease for a key whose check the store has to decide, if one is worth it.
    pub fn along(&self, check: EffectiveCheck<'_>) -> Option<Along> {
        let key = LeaseKey {
            limit: Arc::clone(check.limit),
            key: check.key.to_owned(),
            epoch: self.epoch,
        };
        Some(Along {
            lease: Some(self.plan(key, check.cost, false)?),
            leases: Arc::clone(self.leases),
            sent_us: clock::now_us(),
            batch_index: usize::MAX,
        })
    }
}

impl Along {
    /// Adds it to the call.
    pub fn add_to(&mut self, builder: &mut BatchBuilder) {
        self.batch_index = self
            .lease
            .as_ref()
            .map_or(usize::MAX, |lease| lease.add_to(builder));
    }

    /// Adds it to its pool, if it was granted; `epoch`: the one that is in force by now.
    pub fn settle(mut self, outcomes: &[Option<Outcome>], epoch: u64) {
        if let Some(lease) = self.lease.take() {
            let outcome = outcomes.get(self.batch_index);
            let outcome = outcome.and_then(Option::as_ref);
            let grant = lease.grant(outcome, self.sent_us);
            if let Some(ended) = self.leases.install(grant, outcome, epoch) {
                self.leases.send(Command::Return(ended));
            }
        }
    }
}

impl Drop for Along {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            let grant = lease.grant(None, self.sent_us);
            let ended: Option<EndedLease<_>> = self.leases.install(grant, None, 0);
            ended.map(|ended| self.leases.send(Command::Return(ended)));
        }
    }
}
