//! The stores behind one seam.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluicegate_engine::{Batch, Place, Returns};
use tokio::sync::watch;

use super::cluster::client::Cluster;
use super::error::{ConnectionError, StoreError};
use super::health::{Health, HealthState, Monitor};
use super::memory::Memory;
use super::redis::Redis;
use super::redis::node::Node;
use super::returns::{GiveBackEntry, ReturnCall, calls};
use super::settled::Settlement;
use super::share::Debt;
use crate::clock;
use crate::policy::{DEFAULT_MEMORY_LIMIT, StoreAddress, Topology};

/// For how long a sidecar is remembered that says that it is there: it does so every second.
const REMEMBERED: Duration = Duration::from_secs(5);

/// A store, and the deadline of every call to it.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    timeout: Duration,
    monitor: Arc<Monitor>,
}

#[derive(Debug)]
enum Kind {
    /// In this process.
    Memory(Memory),
    /// In one Redis, shared by a fleet.
    Redis(Redis),
    /// In a Redis Cluster.
    Cluster(Cluster),
}

impl Store {
    /// Opens the store. Redis need not be there yet: connections are made in the current runtime, in the background.
    pub fn open(address: &StoreAddress, timeout: Duration) -> Self {
        let monitor = Arc::new(Monitor::default());
        let report = Arc::clone(&monitor);
        let kind = match address {
            StoreAddress::Memory => {
                monitor.up(monitor.add());
                Kind::Memory(Memory::new(DEFAULT_MEMORY_LIMIT))
            }
            StoreAddress::Redis(redis) => match &redis.url.topology {
                Topology::Single(endpoint) => {
                    Kind::Redis(Redis::open(redis, endpoint, timeout, report))
                }
                Topology::Sentinel { sentinels, name } => {
                    Kind::Redis(Redis::by_sentinels(redis, sentinels, name, timeout, report))
                }
                Topology::Cluster(seeds) => {
                    Kind::Cluster(Cluster::open(redis, seeds, timeout, report))
                }
            },
        };
        Self {
            kind,
            timeout,
            monitor,
        }
    }

    /// Whether all of it can be used: what the connections, the looks at them and the calls have found.
    pub fn health(&self) -> Health {
        self.monitor.health()
    }

    /// Tells of changes of that.
    pub fn health_changes(&self) -> watch::Receiver<Health> {
        self.monitor.watch()
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
            Kind::Redis(redis) => Settlement::whole(batch, redis.decide(batch).await),
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
            Kind::Redis(redis) => redis.return_units(returns).await,
            Kind::Cluster(cluster) => cluster.return_units(returns).await,
        }
    }

    /// How often its clock was found to be set back, as after a failover to a Redis that is behind. What was concluded
    /// from its answers before may be wrong then.
    pub fn clock_steps(&self) -> u64 {
        match &self.kind {
            Kind::Memory(_) => 0,
            Kind::Redis(redis) => redis.clock_steps(),
            Kind::Cluster(cluster) => cluster.clock_steps(),
        }
    }

    /// Makes buckets whole, by their keys; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.reset(keys)),
            Kind::Redis(redis) => redis.reset(keys).await,
            Kind::Cluster(cluster) => cluster.reset(keys).await,
        }
    }

    /// The part of the store that keeps a bucket is known not to decide: nothing was sent to it, or it refused.
    pub fn is_down(&self, key: &str) -> bool {
        match &self.kind {
            Kind::Memory(_) => false,
            Kind::Redis(redis) => redis.node().is_down(),
            Kind::Cluster(cluster) => cluster.of_owner(key, Node::is_down).unwrap_or(true),
        }
    }

    /// The clock of whatever keeps a bucket, microseconds, as far as it is known; rather early than late.
    pub fn clock_us(&self, key: &str) -> Option<u64> {
        match &self.kind {
            Kind::Memory(_) => Some(clock::steady_unix_us()),
            Kind::Redis(redis) => redis.node().clock_us(),
            Kind::Cluster(cluster) => cluster.of_owner(key, Node::clock_us)?,
        }
    }

    /// Says that the sidecar of this name is there, and hears which of how many it is; nothing where a store is not
    /// shared.
    ///
    /// # Errors
    /// The store was not told.
    pub async fn announce(&self, name: &str) -> Result<Option<Place>, StoreError> {
        self.sidecars(name, false).await
    }

    /// Says that the sidecar of this name goes.
    ///
    /// # Errors
    /// The store was not told; it forgets by itself.
    pub async fn leave(&self, name: &str) -> Result<(), StoreError> {
        self.sidecars(name, true).await.map(drop)
    }

    async fn sidecars(&self, name: &str, leaves: bool) -> Result<Option<Place>, StoreError> {
        let (rank, of, _) = match &self.kind {
            Kind::Memory(_) => return Ok(None),
            Kind::Redis(redis) => redis.announce(name, REMEMBERED, leaves).await?,
            Kind::Cluster(cluster) => cluster.announce(name, REMEMBERED, leaves).await?,
        };
        Ok(Some(Place { rank, of }))
    }

    /// Records what was admitted without the store; of calls with the same name only the first does, so that one whose
    /// answer was lost can be repeated.
    ///
    /// # Errors
    /// Some of it is not known to have been recorded.
    pub async fn write_back(&self, debts: &[Debt], name: &str) -> Result<(), StoreError> {
        let told = match &self.kind {
            Kind::Memory(_) => Vec::new(),
            Kind::Redis(redis) => {
                let writes: Vec<_> = debts.iter().map(Debt::write).collect();
                match debts.first() {
                    Some(first) => vec![redis.write_back(&writes, &first.once(name)).await],
                    None => Vec::new(),
                }
            }
            Kind::Cluster(cluster) => {
                let one =
                    async |debt: &Debt| cluster.write_back(debt.write(), &debt.once(name)).await;
                join_all(debts.iter().map(one)).await
            }
        };
        told.into_iter().collect()
    }

    /// Frees what has expired. Redis does so by itself.
    pub async fn sweep(&self) {
        if let Kind::Memory(memory) = &self.kind {
            memory.sweep().await;
        }
    }

    /// Whether all of the store can be used; at the very first, waits until that is known or `store_timeout` has passed.
    ///
    /// # Errors
    /// Why it cannot.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Memory(_) => {}
            Kind::Redis(redis) => redis.tried().await?,
            Kind::Cluster(cluster) => cluster.tried().await?,
        }
        let mut changes = self.monitor.watch();
        let known = changes.wait_for(|health| !matches!(health.state, HealthState::Unknown));
        // If it is not known in time the state says so.
        let _ = tokio::time::timeout(self.timeout, known).await;
        match self.health().state {
            HealthState::Up => Ok(()),
            HealthState::Down(cause) => Err(cause),
            HealthState::Unknown => Err(ConnectionError::NotYet.into()),
        }
    }
}
