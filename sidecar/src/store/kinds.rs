//! The three kinds of store behind one interface.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use sluicegate_engine::{Batch, FleetPosition, Returns};
use tokio::sync::watch;

use super::call::{Announcement, Entry, Listed, OVERRIDES_KEY, Script};
use super::cluster::client::Cluster;
use super::error::{ConnectionError, StoreError};
use super::health::{Health, HealthState, Monitor};
use super::memory::Memory;
use super::overrides::{self, StoredOverrides};
use super::redis::Redis;
use super::redis::node::Node;
use super::reply::StoreReply;
use super::returns::{GiveBackEntry, ReturnCall, calls};
use super::share::Debt;
use crate::clock;
use crate::policy::{DEFAULT_MEMORY_LIMIT, MAX_OVERRIDES, StoreAddress, Topology};
use crate::telemetry::metrics::StoreFacts;

/// The answer to an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The sidecar's rank, and the number of sidecars.
    pub position: FleetPosition,
    /// How long the store has had the list.
    pub list_age: Duration,
}

/// For reading all overrides: some megabytes, which no decision waits for.
const READ_OVERRIDES_WITHIN: Duration = Duration::from_secs(2);
/// For changing them: an operator waits for it.
const CHANGE_OVERRIDES_WITHIN: Duration = Duration::from_secs(1);

/// A store, and the deadline of every call to it.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    timeout: Duration,
    monitor: Arc<Monitor>,
}

#[derive(Debug)]
enum Kind {
    /// In this process's memory.
    Memory(Box<Memory>),
    /// In one Redis, shared by the fleet.
    Redis(Redis),
    /// In a Redis Cluster.
    Cluster(Cluster),
    /// In the Redis of a simulation.
    #[cfg(feature = "simulation")]
    Simulated(super::simulated::Link),
}

impl Store {
    /// Opens the store. Redis need not be there yet: connections are made in the current runtime, in the background.
    pub fn open(address: &StoreAddress, timeout: Duration) -> Self {
        let monitor = Arc::new(Monitor::default());
        let report = Arc::clone(&monitor);
        let kind = match address {
            StoreAddress::Memory => {
                monitor.up(monitor.add());
                Kind::Memory(Box::new(Memory::new(DEFAULT_MEMORY_LIMIT)))
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

    /// Bounds the embedded store's memory, in bytes; no effect on the other kinds. To be called while it is empty.
    #[must_use]
    pub fn with_memory_limit(mut self, bytes: usize) -> Self {
        if let Kind::Memory(memory) = &mut self.kind {
            **memory = Memory::new(bytes);
        }
        self
    }

    /// Its name in messages.
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory(_) => "the sidecar's memory",
            Kind::Redis(_) => "Redis",
            Kind::Cluster(_) => "Redis Cluster",
            #[cfg(feature = "simulation")]
            Kind::Simulated(_) => "a simulated Redis",
        }
    }

    /// Whether a fleet shares it. Otherwise it is in this process.
    pub const fn is_shared(&self) -> bool {
        !matches!(self.kind, Kind::Memory(_))
    }

    /// Whether parts of it may be down while others answer.
    pub const fn has_parts(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// The deadline of every call.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the decisions of a batch in order; later ones see what earlier ones took. On a Cluster, a decision over
    /// several slots is made slot by slot, and what was taken is given back if one of them denies.
    pub async fn decide(&self, batch: &Batch) -> StoreReply {
        match &self.kind {
            Kind::Memory(memory) => StoreReply::each(memory.decide(batch)),
            Kind::Redis(redis) => StoreReply::whole(batch, redis.decide(batch).await),
            Kind::Cluster(cluster) => cluster.decide(batch).await,
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.decide(batch).await,
        }
    }

    /// Makes the decisions without waiting, where the store is in this process.
    pub fn decide_at_once(&self, batch: &Batch) -> Option<StoreReply> {
        match &self.kind {
            Kind::Memory(memory) => Some(StoreReply::each(memory.decide(batch))),
            _ => None,
        }
    }

    /// Returns units by receipts: how many for each entry, `None` where that is unknown, and why. Takes at most twice the
    /// deadline of a call, however many entries there are: what is not done by then is not done later.
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
            // One after the other: at the same time they would block the store for everybody.
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
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.return_units(returns).await,
        }
    }

    /// How often its clock was found to have stepped, as after a failover to a Redis whose clock is behind.
    /// Conclusions from earlier answers may then be wrong.
    pub fn clock_steps(&self) -> u64 {
        match &self.kind {
            Kind::Memory(memory) => memory.clock_steps(),
            Kind::Redis(redis) => redis.clock_steps(),
            Kind::Cluster(cluster) => cluster.clock_steps(),
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.clock_steps(),
        }
    }

    /// Resets buckets, by their keys; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.reset(keys)),
            Kind::Redis(redis) => redis.reset(keys).await,
            Kind::Cluster(cluster) => cluster.reset(keys).await,
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.reset(keys).await,
        }
    }

    /// Whether the node that keeps a bucket is known to be down: nothing is sent to it, or it refuses.
    pub fn is_down(&self, key: &str) -> bool {
        match &self.kind {
            Kind::Memory(_) => false,
            Kind::Redis(redis) => redis.node().is_down(),
            Kind::Cluster(cluster) => cluster.with_owner(key, Node::is_down).unwrap_or(true),
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.is_down(),
        }
    }

    /// Whether the node that keeps the overrides is known to be down. While the first connection is being made, it is not.
    pub fn is_down_for_overrides(&self) -> bool {
        let is_unknown = matches!(self.monitor.watch().borrow().state, HealthState::Unknown);
        !is_unknown && self.is_down(OVERRIDES_KEY)
    }

    /// Whether every bucket's node is known to be down, where that is one node.
    pub fn is_all_down(&self) -> bool {
        match &self.kind {
            Kind::Redis(redis) => redis.node().is_down(),
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.is_down(),
            Kind::Memory(_) | Kind::Cluster(_) => false,
        }
    }

    /// The clock of the node that keeps a bucket, in microseconds, if known; never late.
    pub fn clock_us(&self, key: &str) -> Option<u64> {
        match &self.kind {
            Kind::Memory(_) => Some(clock::unix_us()),
            Kind::Redis(redis) => redis.node().clock_us(),
            Kind::Cluster(cluster) => cluster.with_owner(key, Node::clock_us)?,
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.clock_us(),
        }
    }

    /// Announces the sidecar of this name; `None` where the store is not shared. Returns the version of the overrides too, or
    /// why it is not known: on one Redis both are one call, as long as it may read them.
    ///
    /// # Errors
    /// The store was not reached.
    pub async fn announce(
        &self,
        name: &str,
    ) -> Result<(Option<Announced>, Result<u64, StoreError>), StoreError> {
        let call = |with_overrides| Announcement {
            with_overrides,
            ..Announcement::of(Entry::Sidecar(name))
        };
        match &self.kind {
            Kind::Memory(_) => return Ok((None, self.overrides_version().await)),
            Kind::Redis(_) => match self.enter(&call(true)).await {
                Ok(listed) => {
                    let version = overrides::version(listed.3.as_deref());
                    return Ok((Some(announced(listed)), Ok(version)));
                }
                Err(error) if error.is_refusal() => {}
                Err(error) => return Err(error),
            },
            Kind::Cluster(_) => {}
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => {
                let (announced, version) = link.announce(name, false).await?;
                return Ok((Some(announced), Ok(version)));
            }
        }
        let listed = self.enter(&call(false)).await?;
        Ok((Some(announced(listed)), self.overrides_version().await))
    }

    /// Enters limits, by their digest, in place of `former` ones, and the key prefix; how many other limits there are under this
    /// prefix, and how many other prefixes, as far as the store permits to know.
    ///
    /// # Errors
    /// The store was not reached.
    pub async fn enter_fleet(&self, limits: &str, former: &str) -> Result<(u64, u64), StoreError> {
        if !former.is_empty() && former != limits {
            let leaves = Announcement {
                leaving: true,
                ..Announcement::of(Entry::Limits(former))
            };
            self.enter(&leaves).await?;
        }
        let (_, limits, ..) = self.enter(&Announcement::of(Entry::Limits(limits))).await?;
        let prefixes = self.enter(&Announcement::of(Entry::KeyPrefix)).await;
        // A user may be confined to the keys of one prefix.
        let prefixes = prefixes.map_or(1, |(_, prefixes, ..)| prefixes);
        Ok((limits.saturating_sub(1), prefixes.saturating_sub(1)))
    }

    /// Enters something into a list; alone where the store is not shared.
    async fn enter(&self, call: &Announcement<'_>) -> Result<Listed, StoreError> {
        match &self.kind {
            Kind::Redis(redis) => redis.announce(call).await,
            Kind::Cluster(cluster) => cluster.announce(call).await,
            _ => Ok((0, 1, 0, None)),
        }
    }

    /// What is known of it besides its health.
    pub fn facts(&self) -> StoreFacts {
        self.monitor.facts()
    }

    /// How far its clock is ahead of this host's, in microseconds, if known: less than that by up to a round trip.
    pub fn clock_ahead_us(&self) -> Option<i64> {
        let here_us = i64::try_from(clock::unix_us()).ok()?;
        i64::try_from(self.clock_us(OVERRIDES_KEY)?)
            .ok()?
            .checked_sub(here_us)
    }

    /// Removes the sidecar of this name from the list.
    ///
    /// # Errors
    /// The store was not reached; the entry expires by itself.
    pub async fn leave(&self, name: &str) -> Result<(), StoreError> {
        let call = Announcement {
            leaving: true,
            ..Announcement::of(Entry::Sidecar(name))
        };
        match &self.kind {
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.announce(name, true).await.map(drop),
            _ => self.enter(&call).await.map(drop),
        }
    }

    /// Records what was admitted without the store; whether each debt is known to have been recorded. Of calls with the same
    /// name only the first has an effect, so a call whose answer was lost can be repeated. On a Cluster each debt is a call
    /// of its own; otherwise all are one, which is repeated as a whole.
    pub async fn write_back(&self, debts: &[Debt], name: &str) -> Vec<bool> {
        match &self.kind {
            Kind::Memory(_) => vec![true; debts.len()],
            Kind::Redis(redis) => {
                let writes: Vec<_> = debts.iter().map(Debt::write).collect();
                let Some(first) = debts.first() else {
                    return Vec::new();
                };
                let result = redis.write_back(&writes, &first.once(name)).await;
                vec![result.is_ok(); debts.len()]
            }
            Kind::Cluster(cluster) => {
                let one = async |debt: &Debt| {
                    let result = cluster.write_back(debt.write(), &debt.once(name)).await;
                    result.is_ok()
                };
                join_all(debts.iter().map(one)).await
            }
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => vec![link.write_back(debts, name).await; debts.len()],
        }
    }

    /// The version of the overrides: another one whenever they have changed.
    ///
    /// # Errors
    /// The store did not say.
    pub async fn overrides_version(&self) -> Result<u64, StoreError> {
        let command = Script::overrides_head;
        let head: Option<Vec<u8>> = match &self.kind {
            Kind::Memory(memory) => return Ok(memory.overrides().version),
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => return Ok(link.overrides().await?.version),
            _ => self.ask_of_overrides(command, self.timeout).await?,
        };
        Ok(overrides::version(head.as_deref()))
    }

    /// All overrides.
    ///
    /// # Errors
    /// The store did not say, or holds too many.
    pub async fn overrides(&self) -> Result<StoredOverrides, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => return Ok(memory.overrides().clone()),
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => return link.overrides().await,
            _ => {}
        }
        // What is too much is not asked for. A user who may not ask how much there is may still read it.
        let length = self.ask_of_overrides(Script::overrides_length, self.timeout);
        let entries = length.await.unwrap_or(0_usize).saturating_sub(1);
        if entries > MAX_OVERRIDES {
            return Err(StoreError::TooManyOverrides(entries));
        }
        let hash = self.ask_of_overrides(Script::overrides, READ_OVERRIDES_WITHIN);
        overrides::read_hash(&hash.await?)
    }

    async fn ask_of_overrides<T: FromRedisValue>(
        &self,
        command: impl FnOnce(&Script) -> Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        match &self.kind {
            Kind::Redis(redis) => redis.ask_of_overrides(command, within).await,
            Kind::Cluster(cluster) => cluster.ask_of_overrides(command, within).await,
            _ => Err(ConnectionError::NotYet.into()),
        }
    }

    /// Changes the overrides from what was read; false if they are not what was read any more.
    ///
    /// # Errors
    /// The store did not answer. The change may have been made; to repeat it does no harm.
    pub async fn change_overrides(
        &self,
        read: &StoredOverrides,
        next: &StoredOverrides,
    ) -> Result<bool, StoreError> {
        let command = |script: &Script| script.change_overrides(read, next);
        match &self.kind {
            #[cfg(feature = "simulation")]
            Kind::Simulated(link) => link.change_overrides(read, next).await,
            Kind::Memory(memory) => {
                let now_us = clock::unix_us();
                Ok(memory.overrides().replace(read, next, now_us))
            }
            _ => {
                self.ask_of_overrides(command, CHANGE_OVERRIDES_WITHIN)
                    .await
            }
        }
    }

    /// Frees expired entries. Redis does so by itself.
    pub async fn sweep(&self) {
        if let Kind::Memory(memory) = &self.kind {
            memory.sweep().await;
        }
    }
}

fn announced((rank, of, age_ms, _): Listed) -> Announced {
    Announced {
        position: FleetPosition { rank, of },
        list_age: Duration::from_millis(age_ms),
    }
}
