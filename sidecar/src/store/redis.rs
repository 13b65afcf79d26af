//! The store that a fleet shares: the script of `lua/` in one Redis, over one connection that all calls share.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};
use sluicegate_engine::{Batch, Returns};

use super::call;
use super::error::StoreError;

/// Longest pause between two attempts to reach a Redis that is away: how long limits may take to hold again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that takes longer than this is given up and tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis.
pub struct Redis {
    connection: ConnectionManager,
    script: Script,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the connection: its address may hold a password.
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Redis {
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(StoreError::Address)?;
        let config = ConnectionManagerConfig::new()
            .set_max_delay(LONGEST_PAUSE)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // The store's deadline is the only one.
            .set_response_timeout(None);
        let connection =
            ConnectionManager::new_lazy_with_config(client, config).map_err(StoreError::Address)?;
        Ok(Self {
            connection,
            script: call::script(),
        })
    }

    pub async fn decide(&self, batch: &Batch) -> Result<call::Each, StoreError> {
        call::decide(&mut self.connection.clone(), &self.script, batch).await
    }

    pub async fn return_units(&self, returns: &Returns) -> Result<Vec<u64>, StoreError> {
        call::return_units(&mut self.connection.clone(), &self.script, returns).await
    }

    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let mut held = Vec::with_capacity(keys.len());
        for key in keys {
            held.push(call::reset(&mut self.connection.clone(), key).await?);
        }
        Ok(held)
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        redis::cmd("PING")
            .query_async(&mut self.connection.clone())
            .await
            .map_err(call::classify)
    }
}
