//! A Redis: its supervised connections, and the one that a call uses.

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, FromRedisValue};
use tokio::task::JoinSet;

use super::connection::Deadline;
use super::pool::ConnectionPool;
use super::supervise::supervise;
use crate::store::error::{ConnectionError, StoreError};

/// A Redis. Its connections close when it is dropped.
pub struct Node {
    /// The connections.
    pub pool: Arc<ConnectionPool>,
    _tasks: JoinSet<()>,
}

impl Node {
    /// Starts to connect, in the current runtime.
    pub fn start(pool: ConnectionPool) -> Self {
        let pool = Arc::new(pool);
        let mut tasks = JoinSet::new();
        for number in 0..pool.common.connections {
            tasks.spawn(supervise(Arc::clone(&pool), number));
        }
        Self {
            pool,
            _tasks: tasks,
        }
    }

    /// Sends a command as a sign of life.
    pub async fn announce<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        // Why there is none.
        self.pool.connection(deadline).await?;
        let quietest = self.pool.quietest().ok_or(ConnectionError::NotYet)?;
        let began = Instant::now();
        let answer = quietest.announce(command, asking, deadline).await;
        if answer.is_ok() {
            self.pool.common.monitor.facts().round_trip = began.elapsed();
        }
        answer
    }
}
