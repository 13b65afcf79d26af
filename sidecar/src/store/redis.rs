//! The store that a fleet shares: the script of `lua/` in one Redis, or in the primary that sentinels name.
//!
//! | file | for |
//! |---|---|
//! | `node.rs` | a Redis: its connections, and the one that a call uses |
//! | `supervise.rs` | the owner of a connection: opens, probes and replaces it |
//! | `inspect.rs` | whether a connection still leads to the right server |
//! | `pool.rs` | which connections are usable, and since when none is |
//! | `connection.rs` | a connection in use |
//! | `open.rs`, `dial.rs`, `stream.rs`, `tls.rs` | one attempt to connect |
//! | `probe.rs` | the probe of a connection |
//! | `clock.rs`, `backoff.rs` | an estimate of a store's clock; pauses between attempts; both pure |
//! | `sentinel.rs` | the current primary |
//! | `sharding.rs` | whether a proxy in front shards |

mod backoff;
pub mod clock;
pub mod connection;
pub mod dial;
pub mod inspect;
pub mod node;
mod open;
mod pool;
pub mod probe;
pub mod sentinel;
pub mod sharding;
mod stream;
mod supervise;
mod tls;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use sluicegate_engine::script::{WriteBack, outcomes, returned_units, written};
use sluicegate_engine::{Batch, Bucket, Outcome, Returns};
use tokio::sync::{Notify, watch};

use self::connection::{Deadline, is_no_script};
use self::dial::Dialer;
use self::node::{AddressWatch, Common, Node};
use self::sentinel::Sentinels;
use super::call::{Announcement, Each, Listed, Request, Script};
use super::error::StoreError;
use super::health::Monitor;
use crate::policy::{Endpoint, RedisStore};

/// A Redis.
pub struct Redis {
    node: Node,
    common: Arc<Common>,
    timeout: Duration,
    _address_source: AddressSource,
}

/// Where the address comes from.
enum AddressSource {
    Fixed(#[expect(dead_code, reason = "a watch ends with its sender")] FixedAddress),
    Sentinels(#[expect(dead_code, reason = "they are asked until this is dropped")] Sentinels),
}

type FixedAddress = watch::Sender<Result<Endpoint, StoreError>>;

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the address and the credentials.
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Common {
    /// Shared by the nodes of this store.
    pub fn new(store: &RedisStore, timeout: Duration, monitor: Arc<Monitor>) -> Self {
        Self {
            dialer: Dialer::new(store, timeout),
            script: Script::new(&store.options.key_prefix),
            connections: store.options.connections,
            monitor,
            clock_steps: Arc::default(),
        }
    }
}

/// Announces a sidecar to this node.
pub async fn announce(
    node: &Node,
    script: &Script,
    call: &Announcement<'_>,
    asking: bool,
    deadline: Deadline,
) -> Result<Listed, StoreError> {
    let by = |text| script.sidecars(call, text);
    match node.announce(&by(false), asking, deadline).await {
        Err(error) if is_no_script(&error) => node.announce(&by(true), asking, deadline).await,
        answer => answer,
    }
}

impl Redis {
    /// Starts to connect to this address, in the current runtime.
    pub fn open(
        store: &RedisStore,
        endpoint: &Endpoint,
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let (source, address) = watch::channel(Ok(endpoint.clone()));
        Self::start(
            Common::new(store, timeout, monitor),
            address,
            Arc::default(),
            AddressSource::Fixed(source),
        )
    }

    /// Starts to ask the sentinels, and to connect to the primary that they name.
    pub fn by_sentinels(
        store: &RedisStore,
        sentinels: &[Endpoint],
        name: &str,
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let recheck = Arc::new(Notify::new());
        let dialer = Dialer::to_sentinels(store, timeout);
        let sentinels = Sentinels::ask(dialer, sentinels.to_vec(), name, Arc::clone(&recheck));
        let address = sentinels.primary();
        Self::start(
            Common::new(store, timeout, monitor),
            address,
            recheck,
            AddressSource::Sentinels(sentinels),
        )
    }

    fn start(
        common: Common,
        address: AddressWatch,
        recheck: Arc<Notify>,
        source: AddressSource,
    ) -> Self {
        let (timeout, common) = (common.dialer.store_timeout(), Arc::new(common));
        Self {
            node: Node::start(Arc::clone(&common), address, recheck, None, None),
            common,
            timeout,
            _address_source: source,
        }
    }

    pub(super) async fn decide(&self, batch: &Batch) -> Result<Each<Outcome>, StoreError> {
        if batch.decisions.is_empty() {
            return Ok(Vec::new());
        }
        let request = Request::decide(batch);
        let read = |reply: &[u8]| outcomes(batch, reply);
        self.node
            .invoke(&request, false, Deadline::after(self.timeout), read)
            .await
    }

    pub(super) async fn return_units(&self, returns: &Returns) -> Result<Vec<u64>, StoreError> {
        let request = Request::return_units(returns);
        let read = |reply: &[u8]| returned_units(returns, reply);
        let deadline = Deadline::after(self.timeout);
        let each = self.node.invoke(&request, false, deadline, read).await?;
        // A key that cannot be read holds no units to return.
        Ok(each.into_iter().map(Result::unwrap_or_default).collect())
    }

    pub(super) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let mut held = Vec::with_capacity(keys.len());
        for key in keys {
            let reset = self.common.script.reset([key.as_str()]);
            let connection = self.node.connection(deadline).await?;
            held.push(connection.query(&reset, deadline).await?);
        }
        Ok(held)
    }

    pub(super) async fn write_back(
        &self,
        writes: &[WriteBack<'_>],
        once: &Bucket,
    ) -> Result<(), StoreError> {
        let request = Request::write_back(writes, once);
        let deadline = Deadline::after(self.timeout);
        let read = |reply: &[u8]| written(writes, Some(once), reply);
        // Trying again does not repair a key that holds something else.
        let result = self.node.invoke(&request, false, deadline, read);
        result.await.map(drop)
    }

    pub(super) async fn announce(&self, call: &Announcement<'_>) -> Result<Listed, StoreError> {
        let script = &self.common.script;
        let deadline = Deadline::after(self.timeout);
        announce(&self.node, script, call, false, deadline).await
    }

    /// Asks about overrides. What comes of it says nothing of decisions: a user who may not read them may decide.
    pub(super) async fn ask_of_overrides<T: FromRedisValue>(
        &self,
        command: impl FnOnce(&Script) -> Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let (command, deadline) = (command(&self.common.script), Deadline::after(within));
        let connection = self.node.connection(deadline).await?;
        connection.ask(&command, deadline).await
    }

    /// How often its clock was found to have stepped.
    pub(super) fn clock_steps(&self) -> u64 {
        self.common.clock_steps.load(Ordering::Relaxed)
    }

    /// The node.
    pub(super) const fn node(&self) -> &Node {
        &self.node
    }
}
