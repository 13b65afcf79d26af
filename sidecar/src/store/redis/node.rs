//! A Redis: its supervised connections, and the one that a call uses.

use std::sync::Arc;
use std::time::Instant;

use redis::{Cmd, FromRedisValue};
use tokio::task::JoinSet;

use super::connection::Deadline;
use super::pool::ConnectionPool;
pub use super::pool::{AddressWatch, Common, Recheck};
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
        let clock_of = before.and_then(|before| before.pool.last_connection());
        let pool = ConnectionPool::new(common, address, recheck, tag, clock_of);
        let pool = Arc::new(pool);
        let mut tasks = JoinSet::new();
        for number in 0..pool.count() {
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

    /// Sends a command as a sign of life; after ASK (`asking`) as any other call.
    pub async fn announce<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        // Why there is none.
        let connection = self.pool.connection(deadline).await?;
        if asking {
            return connection.query(command, true, deadline).await;
        }
        let quietest = self.pool.quietest().ok_or(ConnectionError::NotYet)?;
        let began = Instant::now();
        let answer = quietest.announce(command, deadline).await;
        if answer.is_ok() {
            self.pool.common.monitor.facts().round_trip = began.elapsed();
        }
        answer
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.pool.unregister();
    }
}
