//! A Redis: some connections to it, each of them watched, and the one that a call takes.

use std::sync::Arc;

use redis::{Cmd, FromRedisValue};
use sluicegate_engine::script::{Reply, ReplyError};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::links::Links;
pub use super::links::{Common, Place};
use super::live::{Deadline, Live};
use super::supervise::supervise;
use crate::store::call::{Each, Request};
use crate::store::error::StoreError;

/// A Redis. Its connections end when it is dropped.
pub struct Node {
    shared: Arc<Links>,
    _tasks: JoinSet<()>,
}

impl Node {
    /// Begins to connect, in the current runtime. Of a Cluster, `tag` is in a slot of this node.
    pub fn start(
        common: Arc<Common>,
        place: Place,
        doubted: Arc<Notify>,
        tag: Option<&str>,
    ) -> Self {
        let shared = Arc::new(Links::new(common, place, doubted, tag));
        let mut tasks = JoinSet::new();
        for number in 0..shared.count() {
            tasks.spawn(supervise(Arc::clone(&shared), number));
        }
        Self {
            shared,
            _tasks: tasks,
        }
    }

    /// Another slot is this node's.
    pub fn probe_in(&self, tag: &str) {
        self.shared.probe_in(tag);
    }

    /// The connection for the next call; see [`Links::live`].
    pub async fn live(&self, deadline: Deadline) -> Result<Arc<Live>, StoreError> {
        self.shared.live(deadline).await
    }

    /// It has been known for a while not to decide: calls fail without being sent.
    pub fn is_down(&self) -> bool {
        self.shared.are_down()
    }

    /// Its clock now, as far as it is known: microseconds.
    pub fn clock_us(&self) -> Option<u64> {
        self.shared.clock_us()
    }

    /// Calls the script.
    pub async fn invoke<T>(
        &self,
        request: &Request<'_>,
        asking: bool,
        deadline: Deadline,
        read: impl Fn(&[u8]) -> Result<Reply<T>, ReplyError>,
    ) -> Result<Each<T>, StoreError> {
        let live = self.live(deadline).await?;
        let script = &self.shared.common.script;
        live.invoke(script, request, asking, deadline, read).await
    }

    /// Sends another command.
    pub async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        self.live(deadline).await?.query(command, deadline).await
    }

    /// Asks for something that has no part in decisions.
    pub async fn ask<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        self.live(deadline).await?.ask(command, deadline).await
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.forget();
    }
}
