//! The store that a fleet shares: the script of `lua/` in one Redis, or in the primary that sentinels name.
//!
//! | file | for |
//! |---|---|
//! | `node.rs` | a Redis: its connections, and the one that a call takes |
//! | `supervise.rs` | the owner of a connection: makes it, looks at it, replaces it |
//! | `links.rs` | which of its connections can be used, and since when none can |
//! | `live.rs` | a connection in use |
//! | `dial.rs`, `stream.rs`, `tls.rs` | one attempt to connect |
//! | `probe.rs` | the look at a connection |
//! | `clock.rs`, `backoff.rs` | Redis's clock; pauses; both pure |
//! | `sentinel.rs` | who is primary |

mod backoff;
mod clock;
pub mod dial;
mod links;
pub mod live;
pub mod node;
mod probe;
mod sentinel;
mod stream;
mod supervise;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_engine::script::{WriteBack, outcomes, returned_units, written};
use sluicegate_engine::{Batch, Bucket, Outcome, Returns};
use tokio::sync::{Notify, watch};

use self::dial::Dialer;
use self::live::Deadline;
use self::node::{Common, Node, Place};
use self::sentinel::Sentinels;
use super::call::{Each, Request, Script};
use super::error::StoreError;
use super::health::Monitor;
use crate::policy::{Endpoint, RedisStore};

/// A Redis.
pub struct Redis {
    node: Node,
    common: Arc<Common>,
    timeout: Duration,
    _keeper: Keeper,
}

/// Who says where it is.
enum Keeper {
    Fixed(#[expect(dead_code, reason = "a watch ends with its sender")] FixedPlace),
    Sentinels(#[expect(dead_code, reason = "they are asked until this is dropped")] Sentinels),
}

type FixedPlace = watch::Sender<Result<Endpoint, StoreError>>;

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not where it is, and not who asks.
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Common {
    /// For the nodes of this store.
    pub fn new(store: &RedisStore, timeout: Duration, monitor: Arc<Monitor>) -> Self {
        Self {
            dialer: Dialer::new(store, timeout),
            script: Script::new(&store.options.key_prefix),
            connections: store.options.connections,
            monitor,
            warned: AtomicBool::new(false),
            steps: Arc::default(),
        }
    }
}

impl Redis {
    /// Begins to connect to the one at this place, in the current runtime.
    pub fn open(
        store: &RedisStore,
        endpoint: &Endpoint,
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let (keeper, place) = watch::channel(Ok(endpoint.clone()));
        Self::start(
            Common::new(store, timeout, monitor),
            place,
            Arc::default(),
            Keeper::Fixed(keeper),
        )
    }

    /// Begins to ask the sentinels, and to connect to whom they name.
    pub fn by_sentinels(
        store: &RedisStore,
        sentinels: &[Endpoint],
        name: &str,
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let doubted = Arc::new(Notify::new());
        let dialer = Dialer::to_sentinels(store, timeout);
        let sentinels = Sentinels::ask(dialer, sentinels.to_vec(), name, Arc::clone(&doubted));
        let place = sentinels.primary();
        Self::start(
            Common::new(store, timeout, monitor),
            place,
            doubted,
            Keeper::Sentinels(sentinels),
        )
    }

    fn start(common: Common, place: Place, doubted: Arc<Notify>, keeper: Keeper) -> Self {
        let (timeout, common) = (common.dialer.store_timeout(), Arc::new(common));
        Self {
            node: Node::start(Arc::clone(&common), place, doubted, None),
            common,
            timeout,
            _keeper: keeper,
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
        // What cannot be read holds nothing that could come back.
        Ok(each.into_iter().map(Result::unwrap_or_default).collect())
    }

    pub(super) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let mut held = Vec::with_capacity(keys.len());
        for key in keys {
            let reset = self.common.script.reset([key.as_str()]);
            held.push(self.node.query(&reset, deadline).await?);
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
        // A key that holds something else is not mended by trying again.
        let told = self.node.invoke(&request, false, deadline, read);
        told.await.map(drop)
    }

    pub(super) async fn announce(
        &self,
        name: &str,
        lasts: Duration,
        leaves: bool,
    ) -> Result<(u64, u64, u64), StoreError> {
        let command = self.common.script.sidecars(name, lasts, leaves);
        self.node.ask(&command, Deadline::after(self.timeout)).await
    }

    /// How often its clock was found to be set back.
    pub(super) fn clock_steps(&self) -> u64 {
        self.common.steps.load(Ordering::Relaxed)
    }

    /// The node.
    pub(super) const fn node(&self) -> &Node {
        &self.node
    }

    /// Waits for the first attempt to connect to come to something.
    pub(super) async fn tried(&self) -> Result<(), StoreError> {
        self.node
            .live(Deadline::after(self.timeout))
            .await
            .map(|_| ())
    }
}
