//! One attempt to open a connection. It is offered only if it runs the script on a primary; if that took longer than decisions
//! wait, it says so.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::connection::{Connection, Deadline};
use super::dial::Dialled;
use super::pool::{AddressWatch, ConnectionPool};
use super::probe::role;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};
use crate::telemetry::labels::ConnectionCause;

/// A connection that has just been opened.
pub struct Opened {
    /// The connection.
    pub connection: Arc<Connection>,
    /// Drives it, until it is dropped.
    pub driver: JoinSet<()>,
    /// The node's address; a change since it was dialled has not been seen.
    pub address: AddressWatch,
    /// Why it is too slow for decisions, if it is.
    pub slow: Option<StoreError>,
    /// Where it leads, and as whom.
    pub origin: Origin,
}

/// Where a connection leads, and as whom.
pub struct Origin {
    /// The name that was resolved.
    pub endpoint: Endpoint,
    /// One of its addresses.
    pub peer: Option<IpAddr>,
    /// See [`super::dial::Dialer::credentials`].
    pub credentials: Option<u64>,
}

/// Opens a connection to the node's current address.
pub async fn open(pool: &ConnectionPool, why: ConnectionCause) -> Result<Opened, StoreError> {
    let (common, mut address) = (&pool.common, pool.address.clone());
    let is_known = |address: &Result<_, _>| {
        !matches!(
            address,
            Err(StoreError::Connection(ConnectionError::NotYet))
        )
    };
    let known = address.wait_for(is_known).await;
    let endpoint = known.map_err(|_| ConnectionError::NotYet)?.clone()?;
    let credentials = common.dialer.credentials().await;
    let Dialled {
        connection,
        driver,
        peer,
    } = common.dialer.dial(&endpoint).await?;
    *common.monitor.facts().connections.entry(why).or_default() += 1;
    let before = pool.last_connection();
    let steps = Arc::clone(&common.clock_steps);
    let connection = Arc::new(Connection::new(connection, before.as_deref(), steps));
    let deadline = || Deadline::after(common.dialer.answer_timeout);
    if !pool.clustered {
        role(&connection, deadline())
            .await
            .map_err(StoreError::on_new_connection)?;
    }
    let mut began = Instant::now();
    let mut result = pool.probe(&connection, deadline()).await;
    if result.is_ok() && began.elapsed() > common.dialer.store_timeout {
        // It may have had to load the script, or to resume.
        began = Instant::now();
        result = pool.probe(&connection, deadline()).await;
    }
    result.map_err(StoreError::on_new_connection)?;
    Ok(Opened {
        connection,
        driver,
        address,
        slow: slow(pool, began.elapsed()),
        origin: Origin {
            endpoint,
            peer,
            credentials,
        },
    })
}

/// Why a Redis that took so long is too slow, if it is.
pub fn slow(pool: &ConnectionPool, took: Duration) -> Option<StoreError> {
    let most = pool.common.dialer.store_timeout;
    (took > most).then(|| ConnectionError::Slow(took, most).into())
}
