//! The stores behind one seam.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluicegate_engine::{Batch, Returns};

use super::cluster::client::Cluster;
use super::error::{StoreError, within};
use super::memory::Memory;
use super::redis::Redis;
use super::returns::{GiveBackEntry, ReturnCall, calls};
use super::settled::Settlement;
use crate::policy::{DEFAULT_MEMORY_LIMIT, StoreAddress};

/// A store, and the deadline of every call to it.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    timeout: Duration,
}

#[derive(Debug)]
enum Kind {
    /// In this process.
    Memory(Memory),
    /// In one Redis, shared by a fleet.
    Redis(Redis),
    /// In a Redis Cluster.
    Cluster(Box<Cluster>),
}

impl Store {
    /// Opens the store. Redis need not be there yet: the connection is made when it is first needed.
    ///
    /// # Errors
    /// The address cannot be understood.
    pub fn open(address: &StoreAddress, timeout: Duration) -> Result<Self, StoreError> {
        let kind = match address {
            StoreAddress::Memory => Kind::Memory(Memory::new(DEFAULT_MEMORY_LIMIT)),
            StoreAddress::Redis(url) => Kind::Redis(Redis::open(url)?),
            StoreAddress::Cluster(urls) => Kind::Cluster(Box::new(Cluster::open(urls, timeout)?)),
        };
        Ok(Self { kind, timeout })
    }

    /// Bounds what the embedded store holds, in bytes; of no effect on the others. To be called before it holds anything.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        if let Kind::Memory(memory) = &mut self.kind {
            *memory = Memory::new(bytes);
        }
        self
    }

    /// What it is, for people.
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory(_) => "the sidecar's memory",
            Kind::Redis(_) => "Redis",
            Kind::Cluster(_) => "Redis Cluster",
        }
    }

    /// Whether parts of it may be away while others answer.
    pub const fn has_parts(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// The deadline of every call.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the decisions of a batch in order; later ones see what earlier ones took. On a Cluster a decision over
    /// several slots is taken slot by slot, and what was taken is given back if one of them denies.
    pub async fn decide(&self, batch: &Batch) -> Settlement {
        match &self.kind {
            Kind::Memory(memory) => Settlement::each(memory.decide(batch)),
            Kind::Redis(redis) => {
                Settlement::whole(batch, within(self.timeout, redis.decide(batch)).await)
            }
            Kind::Cluster(cluster) => cluster.decide(batch).await,
        }
    }

    /// Makes the decisions without waiting, if this store is one that can.
    pub fn decide_at_once(&self, batch: &Batch) -> Option<Settlement> {
        match &self.kind {
            Kind::Memory(memory) => Some(Settlement::each(memory.decide(batch))),
            Kind::Redis(_) | Kind::Cluster(_) => None,
        }
    }

    /// Returns units by receipts; for each entry how many, or nothing where that is not known; and why. Within twice the
    /// deadline of a call, however many there are: what has not been done then is not done later.
    pub async fn give_back(
        &self,
        entries: &[GiveBackEntry],
    ) -> (Vec<Option<u64>>, Option<StoreError>) {
        let mut units = vec![None; entries.len()];
        let calls = calls(entries, self.has_parts());
        let mut note = |call: &ReturnCall, returned: Vec<u64>| {
            for (entry, returned) in call.entries.iter().zip(returned) {
                if let Some(units) = units.get_mut(*entry) {
                    *units = Some(returned);
                }
            }
        };
        let mut failed = None;
        if self.has_parts() {
            let answers = calls.iter().map(|call| self.return_units(&call.returns));
            for (call, answer) in calls.iter().zip(join_all(answers).await) {
                match answer {
                    Ok(returned) => note(call, returned),
                    Err(error) => failed = Some(error),
                }
            }
        } else {
            // One after the other: together they would hold the store for everybody.
            let deadline = Instant::now() + self.timeout * 2;
            for call in &calls {
                let answer = if Instant::now() < deadline {
                    self.return_units(&call.returns).await
                } else {
                    Err(StoreError::Timeout(self.timeout * 2))
                };
                match answer {
                    Ok(returned) => note(call, returned),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
        }
        (units, failed)
    }

    async fn return_units(&self, returns: &Returns) -> Result<Vec<u64>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.return_units(returns)),
            Kind::Redis(redis) => within(self.timeout, redis.return_units(returns)).await,
            Kind::Cluster(cluster) => within(self.timeout, cluster.return_units(returns)).await,
        }
    }

    /// Makes buckets whole, by their keys; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.reset(keys)),
            Kind::Redis(redis) => within(self.timeout, redis.reset(keys)).await,
            Kind::Cluster(cluster) => cluster.reset(keys).await,
        }
    }

    /// Frees what has expired. Redis does so by itself.
    pub async fn sweep(&self) {
        if let Kind::Memory(memory) = &self.kind {
            memory.sweep().await;
        }
    }

    /// Whether the store answers at all.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Memory(_) => Ok(()),
            Kind::Redis(redis) => within(self.timeout, redis.ping()).await,
            Kind::Cluster(cluster) => cluster.ping().await,
        }
    }
}
