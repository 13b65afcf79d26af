//! One attempt to open a connection. It succeeds only after a probe ran on a primary in front of which no proxy shards; `slow` is set
//! if the probe took longer than `store_timeout`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::join;

use super::connection::Connection;
use super::pool::ConnectionPool;
use super::probe::is_replica;
use super::server::Server;
use super::sharding::is_sharded;
use crate::store::error::{ConnectionError, StoreError};
use crate::telemetry::labels::ConnectionCause;

/// A connection that has just been opened.
pub struct Opened {
    /// The connection.
    pub connection: Arc<Connection>,
    /// Why it is too slow for decisions, if it is.
    pub slow: Option<StoreError>,
}

/// Opens a connection to the node.
pub async fn open(pool: &ConnectionPool, why: ConnectionCause) -> Result<Opened, StoreError> {
    let (common, clock_of) = (&pool.common, pool.last_clock());
    let mut connection = Connection::open(common, &pool.endpoint, clock_of.as_deref()).await?;
    *common.monitor.facts().connections.entry(why).or_default() += 1;
    let heard = Arc::clone(&connection.dialled.heard);
    let failed = |error: StoreError| error.on_new_connection(&heard);
    let info = redis::cmd("INFO");
    let info = connection.ask::<String>(&info, false, connection.patience());
    let (is_replica, info) = join!(is_replica(&connection), info);
    if is_replica.map_err(failed)? {
        return Err(ConnectionError::Replica.into());
    }
    // The user may not ask.
    connection.server = info.map_or_else(|_| Server::default(), |info| Server::read(&info));
    let mut began = Instant::now();
    let mut result = pool.probe(&connection, connection.patience()).await;
    if result.is_ok() && began.elapsed() > common.dialer.store_timeout {
        // It may have had to load the script, or to resume.
        began = Instant::now();
        result = pool.probe(&connection, connection.patience()).await;
    }
    let took = began.elapsed();
    result.map_err(failed)?;
    // Without an answer, nothing is known.
    if is_sharded(&connection).await.unwrap_or(false) {
        return Err(ConnectionError::Sharded.into());
    }
    pool.admit(&connection.server)?;
    Ok(Opened {
        connection: Arc::new(connection),
        slow: slow(pool, took),
    })
}

/// Why a Redis that took so long is too slow, if it is.
pub fn slow(pool: &ConnectionPool, took: Duration) -> Option<StoreError> {
    let most = pool.common.dialer.store_timeout;
    (took > most).then(|| ConnectionError::Slow(took, most).into())
}
