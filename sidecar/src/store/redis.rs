//! The store that a fleet shares: the script of `lua/` in one Redis.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, Script, ServerErrorKind};
use sluicegate_engine::{Batch, Outcome, script};

use super::StoreError;

/// Longest pause between two attempts to reach a Redis that is away: how long limits may take to hold again.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that takes longer than this is given up and tried again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis, reached by one connection that all calls share.
pub struct Redis {
    connection: ConnectionManager,
    decide: Script,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the connection: its address may hold a password.
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl Redis {
    pub(super) fn open(url: &str) -> Result<Self, StoreError> {
        let client = Client::open(url).map_err(StoreError::Address)?;
        let config = ConnectionManagerConfig::new()
            .set_max_delay(LONGEST_PAUSE)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            // The caller's deadline is the only one: see `Service`.
            .set_response_timeout(None);
        let connection =
            ConnectionManager::new_lazy_with_config(client, config).map_err(StoreError::Address)?;
        Ok(Self {
            connection,
            decide: Script::new(script::DECIDE),
        })
    }

    pub(super) async fn decide(&self, batch: &Batch) -> Result<Vec<Outcome>, StoreError> {
        if batch.decisions.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.decide.prepare_invoke();
        for key in script::keys(batch) {
            call.key(key);
        }
        for argument in script::arguments(batch) {
            call.arg(argument);
        }
        // Sends EVALSHA, and the script itself only when Redis has lost it.
        let reply: Vec<i64> = call
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(classify)?;
        script::outcomes(batch, &reply).map_err(StoreError::Reply)
    }

    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        redis::cmd("PING")
            .query_async(&mut self.connection.clone())
            .await
            .map_err(classify)
    }
}

fn classify(error: RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => {
            StoreError::Connection(error)
        }
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
            StoreError::Refused(error)
        }
        _ => StoreError::Connection(error),
    }
}
