//! A Redis: its supervised connections, and the one that a call uses.

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, FromRedisValue};
use tokio::task::JoinSet;

use super::common::Common;
use super::connection::Deadline;
use super::pool::ConnectionPool;
pub use super::pool::{AddressWatch, Recheck};
use super::sharding::watch;
use super::supervise::supervise;
use crate::store::error::{ConnectionError, StoreError};

/// A Redis. Its connections close when it is dropped.
pub struct Node {
    /// The connections.
    pub pool: Arc<ConnectionPool>,
    _tasks: JoinSet<()>,
}

impl Node {
    /// Starts to connect, in the current runtime. In a Cluster, `tag` is in a slot of this node, which was `before`'s.
    pub fn start(
        common: Arc<Common>,
        address: AddressWatch,
        recheck: Recheck,
        tag: Option<&str>,
        before: Option<&Self>,
    ) -> Self {
        let before = before.map(|before| &*before.pool);
        let pool = ConnectionPool::new(common, address, recheck, tag, before);
        let pool = Arc::new(pool);
        let mut tasks = JoinSet::new();
        for number in 0..pool.common.connections {
            tasks.spawn(supervise(Arc::clone(&pool), number));
        }
        if !pool.clustered {
            tasks.spawn(watch(Arc::clone(&pool)));
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
            self.pool.common.monitor.note_round_trip(began.elapsed());
        }
        answer
    }
}
