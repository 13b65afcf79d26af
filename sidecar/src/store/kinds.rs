//! The kinds of store behind one interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluicegate_engine::{Batch, Done, Settlements};
use tokio::sync::watch;

use super::client::Client;
use super::commands::{AnnounceResult, Announcement, Entry, OVERRIDES_KEY};
use super::error::StoreError;
use super::health::{Health, HealthState, Monitor};
use super::memory::Memory;
use super::overrides::StoredOverrides;
use super::reply::StoreReply;
use super::settlements::{calls, settle};
use crate::clock;
use crate::policy::StoreAddress;
use crate::store::slots::Atomic;
use crate::telemetry::metrics::StoreFacts;

/// A store, and the deadline of every call to it.
pub struct Store {
    kind: Kind,
    timeout: Duration,
    monitor: Arc<Monitor>,
}

enum Kind {
    /// In this process's memory.
    Memory(Box<Memory>),
    /// In one Redis or a Redis Cluster, shared by the fleet.
    Redis(Client),
    /// In the Redis of a simulation.
    #[cfg(feature = "simulation")]
    Simulated(super::simulated::Link),
}

/// Calls the method of whichever kind the store is of.
macro_rules! of_each {
    ($self:ident, $store:ident => $call:expr) => {
        match &$self.kind {
            Kind::Memory($store) => $call,
            Kind::Redis($store) => $call,
            #[cfg(feature = "simulation")]
            Kind::Simulated($store) => $call,
        }
    };
}

impl Store {
    /// Opens the store. Redis need not be there yet: connections are made in the current runtime, in the background.
    /// `memory_limit` bounds the embedded store's memory, in bytes.
    pub fn open(address: &StoreAddress, timeout: Duration, memory_limit: usize) -> Self {
        let monitor = Arc::new(Monitor::default());
        let kind = match address {
            StoreAddress::Memory => {
                monitor.up(monitor.add());
                Kind::Memory(Box::new(Memory::new(memory_limit)))
            }
            StoreAddress::Redis(redis) => {
                Kind::Redis(Client::open(redis, timeout, Arc::clone(&monitor)))
            }
        };
        Self {
            kind,
            timeout,
            monitor,
        }
    }

    /// A store behind a link of a simulation.
    #[cfg(feature = "simulation")]
    pub fn simulated(
        server: Arc<super::simulated::Server>,
        faults: super::simulated::Faults,
        timeout: Duration,
    ) -> Self {
        let monitor = Arc::new(Monitor::default());
        let link = super::simulated::Link::open(server, faults, timeout, Arc::clone(&monitor));
        Self {
            kind: Kind::Simulated(link),
            timeout,
            monitor,
        }
    }

    /// Notifies of changes of the store's health.
    pub fn health_changes(&self) -> watch::Receiver<Health> {
        self.monitor.watch()
    }

    /// Its name in messages.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Memory(_) => "the sidecar's memory",
            Kind::Redis(_) if self.has_parts() => "Redis Cluster",
            Kind::Redis(_) => "Redis",
            #[cfg(feature = "simulation")]
            Kind::Simulated(_) => "a simulated Redis",
        }
    }

    /// Whether a fleet shares it. Otherwise it is in this process.
    pub const fn is_shared(&self) -> bool {
        !matches!(self.kind, Kind::Memory(_))
    }

    /// Whether parts of it may be down while others answer.
    pub fn has_parts(&self) -> bool {
        matches!(self.atomic(), Atomic::Slot)
    }

    /// Which keys one call may have.
    fn atomic(&self) -> Atomic {
        match &self.kind {
            Kind::Redis(client) => client.atomic(),
            _ => Atomic::Store,
        }
    }

    /// The deadline of every call.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the decisions of a batch in order; later ones see what earlier ones took. On a Cluster, a decision over
    /// several slots is made slot by slot, and what was taken is given back if one of them denies.
    pub async fn decide(&self, batch: &Batch) -> StoreReply {
        of_each!(self, store => store.decide(batch).await)
    }

    /// Makes the decisions without waiting, where the store is in this process.
    pub fn decide_at_once(&self, batch: &Batch) -> Option<StoreReply> {
        match &self.kind {
            Kind::Memory(memory) => Some(memory.decide_at_once(batch)),
            _ => None,
        }
    }

    /// Settles: what became of each settlement, `None` where that is unknown, and why. Takes at most twice the deadline of a call,
    /// however many settlements there are: those that have not been sent by then are not sent later.
    pub async fn settle(&self, all: &Settlements) -> (Vec<Option<Done>>, Option<StoreError>) {
        let calls = calls(all, self.atomic());
        // On one Redis one after the other: all at once would block it for other callers.
        let at_once = if self.has_parts() { calls.len() } else { 1 };
        let deadline = Instant::now() + self.timeout * 2;
        let make = |call| settle(call, move || self.settle_call(call, deadline));
        let (mut done, mut failed) = (Vec::with_capacity(all.each.len()), None);
        for calls in calls.chunks(at_once.max(1)) {
            let answers = join_all(calls.iter().map(make)).await;
            for (call, answer) in calls.iter().zip(answers) {
                match answer {
                    Ok(settled) => done.extend(settled),
                    Err(error) => {
                        done.extend(call.each.iter().map(|_| None));
                        failed = Some(error);
                    }
                }
            }
        }
        (done, failed)
    }

    async fn settle_call(
        &self,
        call: &Settlements,
        deadline: Instant,
    ) -> Result<Vec<Done>, StoreError> {
        if Instant::now() < deadline {
            return of_each!(self, store => store.settle(call).await);
        }
        Err(StoreError::Timeout(self.timeout * 2))
    }

    /// How often its clock was found to have stepped, as after a failover to a Redis whose clock is behind.
    /// Conclusions from earlier answers may then be wrong.
    pub fn clock_steps(&self) -> u64 {
        of_each!(self, store => store.clock_steps())
    }

    /// Resets buckets, by their keys; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        of_each!(self, store => store.reset(keys).await)
    }

    /// Lets holds live for so many milliseconds from now; whether each was there.
    ///
    /// # Errors
    /// Some of them are not known to live.
    pub async fn renew(&self, holds: &[(String, u64)]) -> Result<Vec<bool>, StoreError> {
        of_each!(self, store => store.renew(holds).await)
    }

    /// The numbers of the nodes that keep buckets, as they are now.
    pub fn homes(&self) -> impl Fn(&str) -> usize {
        let homes = match &self.kind {
            Kind::Redis(client) => Some(client.homes()),
            _ => None,
        };
        move |key| homes.as_ref().map_or(0, |home| home(key))
    }

    /// Whether the node that keeps a bucket is known to be down: nothing is sent to it, or it refuses.
    pub fn is_down(&self, key: &str) -> bool {
        of_each!(self, store => store.is_down(key))
    }

    /// Whether the node that keeps the overrides is known to be down. While the first connection is being made, it is not.
    pub fn is_down_for_overrides(&self) -> bool {
        let is_unknown = matches!(self.monitor.watch().borrow().state, HealthState::Unknown);
        !is_unknown && self.is_down(OVERRIDES_KEY)
    }

    /// Whether every bucket's node is known to be down, where that is one node.
    pub fn is_all_down(&self) -> bool {
        !self.has_parts() && self.is_down(OVERRIDES_KEY)
    }

    /// The clock of the node that keeps a bucket, in microseconds, if known; never late.
    pub fn clock_us(&self, key: &str) -> Option<u64> {
        of_each!(self, store => store.clock_us(key))
    }

    /// Announces the sidecar of this name; `None` where the store is not shared. Returns the version of the overrides too, or
    /// why it is not known.
    ///
    /// # Errors
    /// The store was not reached.
    pub async fn announce(&self, name: &str) -> AnnounceResult {
        of_each!(self, store => store.announce(name).await)
    }

    /// Enters limits, by their digest, in place of `former` ones, and the key prefix; how many other limits there are under this
    /// prefix, and how many other prefixes, as far as the store permits to know.
    ///
    /// # Errors
    /// The store was not reached.
    pub async fn enter_fleet(&self, limits: &str, former: &str) -> Result<(u64, u64), StoreError> {
        let Kind::Redis(client) = &self.kind else {
            return Ok((0, 0));
        };
        if !former.is_empty() && former != limits {
            let left = client.enter(Entry::Limits(former), Announcement::Leaving);
            left.await?;
        }
        let enter = |entry| client.enter(entry, Announcement::Present);
        let (_, limits, ..) = enter(Entry::Limits(limits)).await?;
        let prefixes = enter(Entry::KeyPrefix).await;
        // A user may be confined to the keys of one prefix.
        let prefixes = prefixes.map_or(1, |(_, prefixes, ..)| prefixes);
        Ok((limits.saturating_sub(1), prefixes.saturating_sub(1)))
    }

    /// Facts about it besides its health.
    pub fn facts(&self) -> StoreFacts {
        self.monitor.facts().clone()
    }

    /// How far its clock is ahead of this host's, in microseconds, if known: less than that by up to a round trip.
    pub fn clock_ahead_us(&self) -> Option<i64> {
        let there_us = self.clock_us(OVERRIDES_KEY)?.cast_signed();
        there_us.checked_sub(clock::unix_us().cast_signed())
    }

    /// Removes the sidecar of this name from the list.
    ///
    /// # Errors
    /// The store was not reached; the entry expires by itself.
    pub async fn leave(&self, name: &str) -> Result<(), StoreError> {
        of_each!(self, store => store.leave(name).await)
    }

    /// The version of the overrides: another one whenever they have changed.
    ///
    /// # Errors
    /// The store did not say.
    pub async fn overrides_version(&self) -> Result<u64, StoreError> {
        of_each!(self, store => store.overrides_version().await)
    }

    /// All overrides.
    ///
    /// # Errors
    /// The store did not say, or holds too many.
    pub async fn overrides(&self) -> Result<StoredOverrides, StoreError> {
        of_each!(self, store => store.overrides().await)
    }

    /// Changes the overrides from what was read; what they are then, or `None` if they are not what was read any more.
    ///
    /// # Errors
    /// The store did not answer. The change may have been made; to repeat it does no harm.
    pub async fn change_overrides(
        &self,
        read: &StoredOverrides,
        next: &StoredOverrides,
    ) -> Result<Option<StoredOverrides>, StoreError> {
        of_each!(self, store => store.change_overrides(read, next).await)
    }

    /// Frees expired entries. Redis does so by itself.
    pub async fn sweep(&self) {
        if let Kind::Memory(memory) = &self.kind {
            memory.sweep().await;
        }
    }
}
