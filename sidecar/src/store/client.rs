//! The calls to the Redis that a fleet shares. A single Redis is a node that serves all keys.

mod by_slot;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use sluicegate_engine::script::Operation;
use sluicegate_engine::{Batch, Done, Outcome, Settlements};
use tokio::task::JoinSet;

use super::cluster::map::SlotCache;
use super::cluster::routing::is_apart;
use super::commands::{
    AnnounceResult, Announced, Announcement, Each, Entry, Listed, OVERRIDES_KEY, SIDECARS_SLOT_KEY,
};
use super::error::StoreError;
use super::health::Monitor;
use super::overrides::{self, StoredOverrides};
use super::redis::common::Common;
use super::redis::connection::{Deadline, is_no_script};
use super::redis::node::Node;
use crate::policy::{MAX_OVERRIDES, RedisStore};
use crate::store::slots::{Atomic, slot};

/// For reading all overrides: some megabytes, which no decision waits for.
const READ_OVERRIDES_WITHIN: Duration = Duration::from_secs(2);
/// For changing them: an operator waits for it.
const CHANGE_OVERRIDES_WITHIN: Duration = Duration::from_secs(1);

/// A client of one Redis or of a Cluster. [`Store`](super::kinds::Store) documents the calls that all stores have.
pub struct Client {
    nodes: Arc<SlotCache>,
    common: Arc<Common>,
    /// Find out which nodes there are, until this is dropped.
    _tasks: JoinSet<()>,
}

impl Client {
    /// Starts to connect, in the current runtime.
    pub fn open(store: &RedisStore, timeout: Duration, monitor: Arc<Monitor>) -> Self {
        let common = Arc::new(Common::new(store, timeout, monitor));
        let mut tasks = JoinSet::new();
        Self {
            nodes: SlotCache::start(Arc::clone(&common), store, &mut tasks),
            common,
            _tasks: tasks,
        }
    }

    /// Which keys one call may have.
    pub fn atomic(&self) -> Atomic {
        self.common.atomic
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.common.dialer.store_timeout)
    }

    /// The node that owns a key, if it is known.
    fn owner(&self, key: &str) -> Option<Arc<Node>> {
        self.nodes.map().owner(slot(key)).ok()
    }

    pub fn homes(&self) -> impl Fn(&str) -> usize {
        let map = self.nodes.map();
        move |key| map.home(slot(key))
    }

    pub fn is_down(&self, key: &str) -> bool {
        self.owner(key).is_none_or(|node| node.pool.is_down())
    }

    pub fn clock_us(&self, key: &str) -> Option<u64> {
        self.owner(key)?.pool.clock_us()
    }

    pub fn clock_steps(&self) -> u64 {
        self.common.clock_steps.load(Ordering::Relaxed)
    }

    /// Calls `call` with the node that owns a key, and with whether to send ASKING first.
    async fn call<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        key: &str,
        deadline: Deadline,
        call: impl Fn(Arc<Node>, bool) -> F,
    ) -> Result<T, StoreError> {
        self.nodes.call(slot(key), deadline, call).await
    }

    async fn invoke<O: Operation>(
        &self,
        operation: &O,
        deadline: Deadline,
    ) -> Result<Each<O::Answer>, StoreError> {
        let invoke = |node: Arc<Node>, asking| async move {
            let connection = node.pool.connection(deadline).await?;
            connection.invoke(operation, asking, deadline).await
        };
        let key = operation.keys().next().unwrap_or_default();
        self.call(key, deadline, invoke).await
    }

    /// By one call, whose refusal concerns the whole node.
    async fn decide_whole(
        &self,
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<Each<Outcome>, StoreError> {
        let whole = self.invoke(batch, deadline).await;
        if let (Err(error), Some(first)) = (&whole, batch.buckets.first())
            && let Some(node) = self.owner(&first.key)
        {
            node.pool.note_refused(error, batch);
        }
        whole
    }

    pub async fn settle(&self, settlements: &Settlements) -> Result<Vec<Done>, StoreError> {
        self.settle_by(settlements, self.deadline()).await
    }

    async fn settle_by(
        &self,
        settlements: &Settlements,
        deadline: Deadline,
    ) -> Result<Vec<Done>, StoreError> {
        let whole = self.invoke(settlements, deadline).await;
        if is_apart(&whole) {
            return self.settle_by_key(settlements, deadline).await;
        }
        // Nothing comes back to a key that cannot be read, and trying again does not repair it.
        let each = whole?.into_iter();
        Ok(each
            .map(|one| one.map_or(Done::Nothing, |settled| settled.done))
            .collect())
    }

    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let script = &self.common.script;
        let each = keys.iter().map(|key| (key, script.on_key("UNLINK", key)));
        self.on_keys(each).await
    }

    /// Lets holds live for so many milliseconds, which a call of the script could do no better.
    pub async fn renew(&self, holds: &[(String, u64)]) -> Result<Vec<bool>, StoreError> {
        let script = &self.common.script;
        let each = holds.iter().map(|(hold, for_ms)| {
            let mut command = script.on_key("PEXPIRE", hold);
            command.arg(for_ms);
            (hold, command)
        });
        self.on_keys(each).await
    }

    /// A command for each key; whether it found the key.
    async fn on_keys<'k>(
        &self,
        each: impl Iterator<Item = (&'k String, Cmd)>,
    ) -> Result<Vec<bool>, StoreError> {
        let deadline = self.deadline();
        let one = async |(key, command): (&String, Cmd)| {
            let command = &command;
            let query = |node: Arc<Node>, asking| async move {
                let connection = node.pool.connection(deadline).await?;
                connection.query(command, asking, deadline).await
            };
            self.call(key, deadline, query).await
        };
        join_all(each.map(one)).await.into_iter().collect()
    }

    /// The announcement and the version of the overrides are one call where they may be, as long as the user may read them.
    pub async fn announce(&self, name: &str) -> AnnounceResult {
        let entry = Entry::Sidecar(name);
        let group = |key| self.common.atomic.group(key);
        if group(SIDECARS_SLOT_KEY) == group(OVERRIDES_KEY) {
            match self.enter(entry, Announcement::PresentWithOverrides).await {
                Ok(listed) => {
                    let version = overrides::version(listed.3.as_deref());
                    return Ok((Some(Announced::from(listed)), Ok(version)));
                }
                Err(error) if error.is_refusal() => {}
                Err(error) => return Err(error),
            }
        }
        let listed = self.enter(entry, Announcement::Present).await?;
        Ok((Some(listed.into()), self.overrides_version().await))
    }

    pub async fn leave(&self, name: &str) -> Result<(), StoreError> {
        let left = self.enter(Entry::Sidecar(name), Announcement::Leaving);
        left.await.map(drop)
    }

    /// Enters something into a list.
    pub async fn enter(
        &self,
        entry: Entry<'_>,
        announced: Announcement,
    ) -> Result<Listed, StoreError> {
        let (deadline, script) = (self.deadline(), &self.common.script);
        let announce = |node: Arc<Node>, asking| async move {
            let by = |text| script.sidecars(entry, announced, text);
            match node.announce(&by(false), asking, deadline).await {
                Err(error) if is_no_script(&error) => {
                    node.announce(&by(true), asking, deadline).await
                }
                answer => answer,
            }
        };
        self.call(SIDECARS_SLOT_KEY, deadline, announce).await
    }

    pub async fn overrides_version(&self) -> Result<u64, StoreError> {
        let timeout = self.common.dialer.store_timeout;
        let mut head = self.common.script.on_key("HGET", OVERRIDES_KEY);
        head.arg(overrides::OVERRIDES_HEAD);
        let head: Option<Vec<u8>> = self.ask_of_overrides(&head, timeout).await?;
        Ok(overrides::version(head.as_deref()))
    }

    pub async fn overrides(&self) -> Result<StoredOverrides, StoreError> {
        let script = &self.common.script;
        // HLEN comes first, so that an oversized hash is not read. A user without HLEN skips the check.
        let timeout = self.common.dialer.store_timeout;
        let length = script.on_key("HLEN", OVERRIDES_KEY);
        let length = self.ask_of_overrides(&length, timeout).await;
        let entries = length.unwrap_or(0_usize).saturating_sub(1);
        if entries > MAX_OVERRIDES {
            return Err(StoreError::TooManyOverrides(entries));
        }
        let all = script.on_key("HGETALL", OVERRIDES_KEY);
        let hash = self.ask_of_overrides(&all, READ_OVERRIDES_WITHIN).await?;
        let stored = overrides::read_hash(&hash);
        // Exactly, also of a hash that has no head.
        let entries = stored.entries.len() + stored.unreadable;
        if entries > MAX_OVERRIDES {
            return Err(StoreError::TooManyOverrides(entries));
        }
        Ok(stored)
    }

    pub async fn change_overrides(
        &self,
        read: &StoredOverrides,
        next: &StoredOverrides,
    ) -> Result<Option<StoredOverrides>, StoreError> {
        let command = self.common.script.change_overrides(read, next);
        let version = self.ask_of_overrides(&command, CHANGE_OVERRIDES_WITHIN);
        Ok(match version.await? {
            0 => None,
            version => Some(read.changed_to(next, version)),
        })
    }

    /// Asks about overrides, all of which are in one slot. The answer says nothing about decisions: a user who may not read
    /// overrides may still decide.
    async fn ask_of_overrides<T: FromRedisValue>(
        &self,
        command: &Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::after(within);
        let ask = |node: Arc<Node>, asking| async move {
            let connection = node.pool.connection(deadline).await?;
            connection.ask(command, asking, deadline).await
        };
        self.call(OVERRIDES_KEY, deadline, ask).await
    }
}
