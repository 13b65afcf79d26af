//! The task that asks the store for leases and returns what was not spent. Each round makes at most one call of each kind for
//! all keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_engine::lease::{EndedLease, Grant, LeaseRefusal};
use sluicegate_engine::{BatchBuilder, Done, Outcome, Settlements, bucket_key};

use super::lease::useless_because;
use super::{Command, Lease, LeaseKey, Leases, longest_us};
use crate::clock;
use crate::decide::backend::Backend;
use crate::decide::denials::Denials;
use crate::decide::epoch::PolicyHandle;
use crate::lock::lock;
use crate::random;

/// Renewals and returns wait at most this part of the longest lease for others, so that they share a call: a renewal begins when
/// what is left lasts for about a third of it.
const GROUPING_PART: u64 = 5;
/// Every request for a lease waits at least this part.
const LEAST_GROUPING_PART: u64 = 50;

/// A filter that waits for a lease is notified after this time at the latest: commands that arrive meanwhile share its call.
const NOTIFY_WITHIN_US: u64 = 2_000;

/// Units to return.
type Returns = Vec<EndedLease<Arc<Lease>>>;

/// What the keeper works with.
#[derive(Clone, Copy)]
pub struct Keeper<'a> {
    /// The leases.
    pub leases: &'a Leases,
    /// Asks the store.
    pub backend: &'a Backend,
    /// The policy in force.
    pub policy: &'a PolicyHandle,
    /// Voided when units are returned.
    pub denials: &'a Denials,
}

impl Keeper<'_> {
    /// Keeps the leases. Never returns.
    pub async fn run(self) {
        let mut received = self.leases.received.lock().await;
        // When leases end, and how long their return may wait for others.
        let mut ends = BTreeMap::new();
        loop {
            let mut commands = Vec::new();
            let first = ends.first_key_value();
            let mut begin_us = first.map_or(u64::MAX, |(ends_us, wait_us): (&u64, &u64)| {
                ends_us + wait_us
            });
            // Collects commands until one of them, or the return of an ended lease, is due.
            loop {
                let wait_us = begin_us.saturating_sub(clock::now_us());
                tokio::select! {
                    // In this order, so that a simulation can repeat it and no flood of commands delays the returns.
                    biased;
                    () = tokio::time::sleep(Duration::from_micros(wait_us)) => break,
                    command = received.recv() => {
                        let Some(command) = command else { return };
                        let by_us = clock::now_us().saturating_add(command.may_wait_us());
                        begin_us = begin_us.min(by_us);
                        commands.push(command);
                    }
                }
            }
            let later = ends.split_off(&clock::now_us().saturating_add(1));
            let (mut asks, mut returns, mut notified) = (Vec::new(), Vec::new(), Vec::new());
            let mut any_ended = !ends.is_empty();
            ends = later;
            for command in commands {
                match command {
                    Command::RequestLease { key, .. } => asks.push(key),
                    Command::ReturnEnded(_) => any_ended = true,
                    Command::Return(ended) => returns.push(ended),
                    Command::Notify(sender) => notified.push(sender),
                }
            }
            if any_ended {
                returns.extend(self.ended(self.policy.current().number));
            }
            let ((granted, useless), ()) = tokio::join!(self.ask(asks), self.settle(returns));
            drop(notified);
            self.settle(useless).await;
            ends.extend(granted);
        }
    }

    /// Ends all leases for good, and returns them.
    pub async fn close(self) {
        self.leases.closed.store(true, Ordering::Relaxed);
        self.settle(self.ended(u64::MAX)).await;
    }

    /// The leases that have ended, and those of epochs before this one.
    fn ended(&self, epoch: u64) -> Returns {
        let shards = self.leases.shards.iter();
        shards.flat_map(|shard| lock(shard).ended(epoch)).collect()
    }

    /// Asks for leases. Returns when the granted ones end, with how long their return may wait, and what is to be returned at once.
    async fn ask(&self, keys: Vec<LeaseKey>) -> (Vec<(u64, u64)>, Returns) {
        let (mut granted, mut useless) = (Vec::new(), Vec::new());
        let asked: Vec<_> = keys.into_iter().filter_map(|key| self.plan(key)).collect();
        if asked.is_empty() {
            return (granted, useless);
        }
        let mut builder = BatchBuilder::new();
        for lease in &asked {
            lease.add_to(&mut builder);
        }
        // Before the call: by the store's clock, the lease was not taken earlier than this.
        let sent_us = clock::now_us();
        let batch = Arc::new(builder.finish());
        let outcomes = self.backend.take_in_advance(batch).await;
        for (lease, outcome) in asked.into_iter().zip(outcomes) {
            let wait_us = grouping_us(&lease.key);
            let grant = lease.grant(outcome.as_ref(), sent_us);
            let ends_us = grant.ends_us;
            match self.install(grant, outcome.as_ref()) {
                None => granted.push((ends_us, wait_us)),
                Some(ended) => useless.push(ended),
            }
        }
        (granted, useless)
    }

    /// How many units to ask for, if any.
    fn plan(&self, key: LeaseKey) -> Option<Lease> {
        let epoch = self.policy.current();
        let spec = key.limit.windows.first()?;
        let first = bucket_key(&key.key, &key.limit.name, spec);
        let store_us = self.backend.clock_us(&first);
        let secret = random::secret();
        let mut shard = self.leases.shard(&key.key);
        let entry = shard.get_mut(&key.limit.name, &key.key)?;
        let now_us = clock::now_us();
        let metrics = epoch.metrics.leases(&key.limit.name);
        let (Some(metrics), true, true) =
            (metrics, epoch.number == key.epoch, entry.epoch == key.epoch)
        else {
            // Another policy or other overrides have come into force.
            entry.pool.refused(now_us);
            return None;
        };
        let units = entry.pool.ask(&key.limit.windows, now_us, store_us);
        match (units, secret) {
            (Ok(units), Some(secret)) => Some(Lease::new(key.clone(), units, secret, metrics)),
            (units, _) => {
                entry.pool.refused(now_us);
                metrics.count_refused(units.err().unwrap_or(LeaseRefusal::Store));
                None
            }
        }
    }

    /// Adds a lease to its pool, or returns the units that are to be returned: all that the store may have taken.
    fn install(
        &self,
        grant: Grant<Arc<Lease>>,
        outcome: Option<&Outcome>,
    ) -> Option<EndedLease<Arc<Lease>>> {
        let (lease, now_us) = (Arc::clone(&grant.tag), clock::now_us());
        let key = &lease.key;
        let refusal = match outcome {
            // Redis may have granted it. Its units are returned as far as they were taken.
            None => Some(LeaseRefusal::Store),
            Some(outcome) if !outcome.admitted => Some(LeaseRefusal::NearLimit),
            Some(_) => {
                lease.metrics.count_granted(grant.units);
                useless_because(&grant, now_us)
            }
        };
        if let Some(refusal) = refusal {
            lease.metrics.count_refused(refusal);
        }
        let may_be_taken = outcome.is_none_or(|outcome| outcome.admitted);
        let ended = EndedLease {
            units: if may_be_taken { grant.units } else { 0 },
            tag: Arc::clone(&lease),
        };
        let mut shard = self.leases.shard(&key.key);
        let Some(entry) = shard.get_mut(&key.limit.name, &key.key) else {
            return Some(ended);
        };
        let is_current = entry.epoch == key.epoch && key.epoch == self.policy.current().number;
        if refusal.is_none() && is_current && !self.leases.is_closed() {
            entry.pool.granted(grant);
            return None;
        }
        entry.pool.refused(now_us);
        if let (Some(_), Some(outcome)) = (refusal, outcome) {
            entry.pool.note_remaining(outcome.remaining);
        }
        Some(ended)
    }

    /// Returns units.
    async fn settle(&self, mut returns: Returns) {
        returns.retain(|ended| ended.units > 0);
        // A call names a bucket once, with one quota: so each epoch has its own.
        returns.sort_by_key(|ended| ended.tag.key.epoch);
        for of_epoch in returns.chunk_by(|one, other| one.tag.key.epoch == other.tag.key.epoch) {
            let mut settlements = Settlements::default();
            for ended in of_epoch {
                ended.tag.settle(ended.units, &mut settlements);
            }
            let returned = self.backend.settle(&settlements).await;
            for (ended, returned) in of_epoch.iter().zip(returned) {
                if ended.tag.is_granted() {
                    let metrics = &ended.tag.metrics;
                    metrics.count_returned(ended.units, returned.map_or(0, Done::units));
                }
            }
            if self.denials.count() > 0 {
                let keys = of_epoch.iter();
                let keys = keys.map(|ended| {
                    (
                        ended.tag.key.limit.name.as_str(),
                        ended.tag.key.key.as_str(),
                    )
                });
                self.denials.void(keys);
            }
        }
    }
}

/// How long a key's renewal or return waits for others.
fn grouping_us(key: &LeaseKey) -> u64 {
    longest_us(&key.limit) / GROUPING_PART
}

impl Command {
    /// How long it waits for others.
    fn may_wait_us(&self) -> u64 {
        match self {
            Self::RequestLease { key, within_us } => {
                let most_us = grouping_us(key);
                let least_us = most_us * GROUPING_PART / LEAST_GROUPING_PART;
                (*within_us).clamp(least_us, most_us)
            }
            // A denial found them, or an operator ended them.
            Self::ReturnEnded(within_us) => *within_us,
            Self::Return(ended) => longest_us(&ended.tag.key.limit) / 2,
            Self::Notify(_) => NOTIFY_WITHIN_US,
        }
    }
}
