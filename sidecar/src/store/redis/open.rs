//! One attempt to open a connection. It succeeds only after a probe ran on a primary; `slow` is set if that took longer than
//! `store_timeout`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{Connection, Deadline};
use super::pool::{AddressWatch, ConnectionPool};
use super::probe::is_replica;
use crate::store::error::{ConnectionError, StoreError, is_not_yet};
use crate::telemetry::labels::ConnectionCause;

/// A connection that has just been opened.
pub struct Opened {
    /// The connection.
    pub connection: Arc<Connection>,
    /// The node's address; a change since it was dialled has not been seen.
    pub address: AddressWatch,
    /// Why it is too slow for decisions, if it is.
    pub slow: Option<StoreError>,
}

/// Opens a connection to the node's current address.
pub async fn open(pool: &ConnectionPool, why: ConnectionCause) -> Result<Opened, StoreError> {
    let (common, mut address) = (&pool.common, pool.address.clone());
    let is_known = |address: &Result<_, StoreError>| !address.as_ref().is_err_and(is_not_yet);
    let known = address.wait_for(is_known).await;
    let endpoint = known.map_err(|_| ConnectionError::NotYet)?.clone()?;
    let clock_of = pool.last_clock();
    let connection = Connection::open(common, &endpoint, clock_of.as_deref()).await?;
    *common.monitor.facts().connections.entry(why).or_default() += 1;
    let deadline = || Deadline::after(common.dialer.answer_timeout);
    let failed = |error: StoreError| error.on_new_connection(&connection.dialled.heard);
    if !pool.clustered {
        let is_replica = is_replica(&connection, deadline()).await;
        if is_replica.map_err(failed)? {
            return Err(ConnectionError::Replica.into());
        }
    }
    let mut began = Instant::now();
    let mut result = pool.probe(&connection, deadline()).await;
    if result.is_ok() && began.elapsed() > common.dialer.store_timeout {
        // It may have had to load the script, or to resume.
        began = Instant::now();
        result = pool.probe(&connection, deadline()).await;
    }
    result.map_err(failed)?;
    Ok(Opened {
        connection: Arc::new(connection),
        address,
        slow: slow(pool, began.elapsed()),
    })
}

/// Why a Redis that took so long is too slow, if it is.
pub fn slow(pool: &ConnectionPool, took: Duration) -> Option<StoreError> {
    let most = pool.common.dialer.store_timeout;
    (took > most).then(|| ConnectionError::Slow(took, most).into())
}
