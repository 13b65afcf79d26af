//! The task that renews leases and returns what was not spent. Each round makes at most one call of each kind for
//! all keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_engine::lease::{EndedLease, SMALLEST_RENEWAL};
use sluicegate_engine::{BatchBuilder, Done, Settlements};

use super::{Command, GROUPING_PART, Lease, LeaseBasis, LeaseKey, Leases, grouping_us, longest_us};
use crate::clock;
use crate::decide::backend::Backend;
use crate::decide::denials::Denials;
use crate::decide::epoch::PolicyHandle;
use crate::lock::lock;

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
    pub leases: &'a Arc<Leases>,
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
        // When leases that have ended are next returned.
        let mut looks_us = u64::MAX;
        loop {
            self.leases.looks_us.store(looks_us, Ordering::Relaxed);
            let (mut commands, mut begin_us) = (Vec::new(), looks_us);
            // Collects commands until one of them, or the return of an ended lease, is due.
            loop {
                let wait_us = begin_us.saturating_sub(clock::now_us());
                tokio::select! {
                    // In this order, so that a simulation can repeat it and no flood of commands delays the returns.
                    biased;
                    () = tokio::time::sleep(Duration::from_micros(wait_us)) => break,
                    command = received.recv() => {
                        let Some(command) = command else { return };
                        if let Command::ReturnAt(return_us) = command {
                            looks_us = looks_us.min(return_us);
                            self.leases.looks_us.store(looks_us, Ordering::Relaxed);
                            begin_us = begin_us.min(looks_us);
                            continue;
                        }
                        let by_us = clock::now_us().saturating_add(command.may_wait_us());
                        begin_us = begin_us.min(by_us);
                        commands.push(command);
                    }
                }
            }
            let (mut renewals, mut returns, mut notified) = (Vec::new(), Vec::new(), Vec::new());
            let mut any_ended = looks_us <= clock::now_us();
            for command in commands {
                match command {
                    Command::Renew { key, .. } => renewals.push(key),
                    Command::ReturnEnded(_) => any_ended = true,
                    Command::Return(ended) => returns.push(ended),
                    Command::Notify(sender) => notified.push(sender),
                    Command::ReturnAt(_) => {}
                }
            }
            if any_ended {
                looks_us = u64::MAX;
                returns.extend(self.ended(self.policy.current().number, &mut looks_us));
            }
            let (useless, ()) = tokio::join!(self.renew(renewals), self.settle(returns));
            drop(notified);
            self.settle(useless).await;
        }
    }

    /// Ends all leases for good, and returns them.
    pub async fn close(self) {
        self.leases.closed.store(true, Ordering::Relaxed);
        self.settle(self.ended(u64::MAX, &mut 0)).await;
    }

    /// The leases that have ended, and those of epochs before this one. Lowers `looks_us` to when the next are to be returned.
    fn ended(&self, epoch: u64, looks_us: &mut u64) -> Returns {
        let shards = self.leases.shards.iter();
        let ended = shards.flat_map(|shard| lock(shard).ended(epoch, looks_us));
        ended.collect()
    }

    /// Asks for leases that follow others. Returns what is to be returned at once.
    async fn renew(&self, keys: Vec<LeaseKey>) -> Returns {
        let epoch = self.policy.current();
        let basis = LeaseBasis {
            leases: self.leases,
            epoch: epoch.number,
            metrics: &epoch.metrics,
            store_us: &|bucket| self.backend.advance_clock_us(bucket),
        };
        let plans = keys.into_iter();
        let plans = plans.filter_map(|key| basis.plan(key, SMALLEST_RENEWAL, true));
        let asked: Vec<_> = plans.collect();
        if asked.is_empty() {
            return Vec::new();
        }
        let mut builder = BatchBuilder::new();
        for lease in &asked {
            lease.add_to(&mut builder);
        }
        // Before the call: by the store's clock, the lease was not taken earlier than this.
        let sent_us = clock::now_us();
        let batch = Arc::new(builder.finish());
        let outcomes = self.backend.take_in_advance(batch).await;
        let epoch = self.policy.current().number;
        let installed = asked.into_iter().zip(outcomes);
        let installed = installed.filter_map(|(lease, outcome)| {
            let grant = lease.grant(outcome.as_ref(), sent_us);
            self.leases.install(grant, outcome.as_ref(), epoch)
        });
        installed.collect()
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

impl Command {
    /// How long it waits for others.
    fn may_wait_us(&self) -> u64 {
        match self {
            Self::Renew { key, within_us } => {
                let most_us = grouping_us(key);
                let least_us = most_us * GROUPING_PART / LEAST_GROUPING_PART;
                (*within_us).clamp(least_us, most_us)
            }
            // A denial found them, or an operator ended them.
            Self::ReturnEnded(within_us) => *within_us,
            Self::Return(ended) => longest_us(&ended.tag.key.limit) / 2,
            Self::Notify(_) => NOTIFY_WITHIN_US,
            Self::ReturnAt(at_us) => at_us.saturating_sub(clock::now_us()),
        }
    }
}
