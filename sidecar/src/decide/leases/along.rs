//! A lease that a question's own call of the store takes along: the first for a key costs no call of its own.

use std::sync::Arc;

use sluicegate_engine::lease::LeaseRefusal;
use sluicegate_engine::{BatchBuilder, Outcome, bucket_key};

use super::{Command, Lease, LeaseKey, Leases};
use crate::clock;
use crate::decide::effective::EffectiveCheck;
use crate::random;
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
        Some(Along {
            lease: Some(self.plan(check.under(self.epoch), check.cost, false)?),
            leases: Arc::clone(self.leases),
            sent_us: clock::now_us(),
            batch_index: usize::MAX,
        })
    }

    /// The lease to ask for, of at least `least` units, if one is worth it. `renews`: that it will be asked for is noted already.
    pub(super) fn plan(&self, key: LeaseKey, least: u64, renews: bool) -> Option<Lease> {
        let spec = key.limit.windows.first()?;
        let mut shard = self.leases.shard(&key.key);
        let entry = shard.get_mut(&key.limit.name, &key.key)?;
        let now_us = clock::now_us();
        if !renews && !entry.pool.may_ask(now_us) {
            return None;
        }
        let is_current = key.epoch == self.epoch && entry.epoch == self.epoch;
        let (Some(metrics), true) = (self.metrics.leases(&key.limit.name), is_current) else {
            // Another policy or other overrides have come into force.
            entry.pool.refused(now_us);
            return None;
        };
        let store_us = (self.store_us)(&bucket_key(&key.key, &key.limit.name, spec));
        let beside = if renews { 0 } else { least };
        let units = (entry.pool).ask(&key.limit.windows, now_us, store_us, least, beside);
        match (units, random::secret()) {
            (Ok(units), Some(secret)) => Some(Lease::new(key.clone(), units, secret, metrics)),
            (units, _) => {
                entry.pool.refused(now_us);
                metrics.count_refused(units.err().unwrap_or(LeaseRefusal::Store));
                None
            }
        }
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
        let outcome = outcomes.get(self.batch_index);
        self.install(outcome.and_then(Option::as_ref), epoch);
    }

    fn install(&mut self, outcome: Option<&Outcome>, epoch: u64) {
        if let Some(lease) = self.lease.take() {
            let grant = lease.grant(outcome, self.sent_us);
            if let Some(ended) = self.leases.install(grant, outcome, epoch) {
                self.leases.send(Command::Return(ended));
            }
        }
    }
}

impl Drop for Along {
    fn drop(&mut self) {
        // Without an outcome, the epoch does not matter.
        self.install(None, 0);
    }
}
