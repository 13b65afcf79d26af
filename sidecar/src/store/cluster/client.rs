//! The store that a fleet shares, in a Redis Cluster.
//!
//! All buckets of a subject are in one slot, and what is in one slot is decided atomically, by one call of the script.
//! A decision over several subjects becomes a part in each of their slots. The parts are taken at the same time, and
//! if one is denied (or its node does not answer), what the others took is given back: never over, but while the parts
//! of such a decision are under way another may be denied for units that come back.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Script;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{Batch, Returns};
use tokio::sync::OnceCell;

use super::parts::{Part, combine, split};
use crate::store::call;
use crate::store::error::{StoreError, within};
use crate::store::settled::Settlement;

/// Attempts while a slot moves or a node is replaced. More than any deadline leaves time for: a slot that is in two
/// places sends a call to and fro, and the store's deadline is what ends it.
const RETRIES: u32 = 1_000;
/// Milliseconds between them.
const RETRY_WAIT: (u64, u64) = (5, 50);
/// A connection that takes longer than this is given up and tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis Cluster.
pub struct Cluster {
    client: ClusterClient,
    /// Made when it is first needed: the client asks the nodes for their slots.
    connection: OnceCell<ClusterConnection>,
    script: Script,
    timeout: Duration,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the client: its addresses may hold passwords.
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    pub fn open(urls: &[String], timeout: Duration) -> Result<Self, StoreError> {
        let client = ClusterClientBuilder::new(urls.iter().map(String::as_str))
            .retries(RETRIES)
            .min_retry_wait(RETRY_WAIT.0)
            .max_retry_wait(RETRY_WAIT.1)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(timeout)
            .build()
            .map_err(StoreError::Address)?;
        Ok(Self {
            client,
            connection: OnceCell::new(),
            script: call::script(),
            timeout,
        })
    }

    async fn connection(&self) -> Result<ClusterConnection, StoreError> {
        let connect = async || {
            self.client
                .get_async_connection()
                .await
                .map_err(StoreError::Connection)
        };
        self.connection.get_or_try_init(connect).await.cloned()
    }

    pub async fn decide(&self, batch: &Batch) -> Settlement {
        let parts = split(batch);
        let answers = join_all(
            parts
                .iter()
                .map(|part| within(self.timeout, self.decide_part(part))),
        )
        .await;
        let mut errors = Vec::new();
        let answers: Vec<_> = answers
            .into_iter()
            .map(|answer| answer.map_err(|error| errors.push(error)).ok())
            .collect();
        let broken = answers.iter().flatten().flatten();
        errors.extend(
            broken
                .filter_map(|said| said.err())
                .take(1)
                .map(StoreError::from),
        );
        let combined = combine(batch, &parts, &answers);
        if let Err(error) = self.give_back(&combined.to_give_back).await {
            errors.push(error);
        }
        Settlement {
            decisions: combined.decisions,
            errors,
        }
    }

    async fn decide_part(&self, part: &Part) -> Result<call::Each, StoreError> {
        call::decide(&mut self.connection().await?, &self.script, part.batch()).await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>]) -> Result<Vec<u64>, StoreError> {
        let one = async |give_back: &GiveBack<'_>| {
            let returns = std::slice::from_ref(give_back);
            call::give_back(&mut self.connection().await?, &self.script, returns).await
        };
        let units = join_all(
            returns
                .iter()
                .map(|give_back| within(self.timeout, one(give_back))),
        )
        .await;
        Ok(units.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    pub async fn return_units(&self, returns: &Returns) -> Result<Vec<u64>, StoreError> {
        call::return_units(&mut self.connection().await?, &self.script, returns).await
    }

    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let one = async |key: &String| call::reset(&mut self.connection().await?, key).await;
        join_all(keys.iter().map(|key| within(self.timeout, one(key))))
            .await
            .into_iter()
            .collect()
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        within(self.timeout, async {
            redis::cmd("PING")
                .query_async(&mut self.connection().await?)
                .await
                .map_err(call::classify)
        })
        .await
    }
}
