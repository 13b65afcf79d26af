//! Inspects a connection in use: whether it still leads to its node's address, with the right credentials, and whether that Redis
//! evicts keys.

use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::backoff::random_part;
use super::connection::{Connection, Deadline};
use super::dial::Dialled;
use super::open::{Opened, open};
use super::pool::ConnectionPool;
use super::probe::is_replica;
use super::stream::addresses;
use crate::store::error::{ConnectionError, StoreError};
use crate::telemetry::labels::ConnectionCause;

/// How often to look, at least.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// A connection is replaced when its name has lacked its address this many times in a row: one answer of DNS may not have all
/// addresses of a name.
const MISSING: u32 = 3;

/// Waits until a connection has to be replaced, and returns the one that replaces it; meanwhile it is used. Fails with the
/// reason why nothing may use it any longer.
pub async fn inspect(pool: &ConnectionPool, connection: &Connection) -> Result<Opened, StoreError> {
    let mut missing = 0;
    // At once: so a server that may evict keys is reported before it does.
    let mut pause = Duration::ZERO;
    loop {
        sleep(pause - random_part(pause / 4)).await;
        pause = LOOK_EVERY;
        let server = ask(pool, connection).await?;
        let is_missing = is_missing(&connection.dialled).await;
        missing = if is_missing { missing + 1 } else { 0 };
        let credentials = pool.common.dialer.credentials().await;
        let cause = if credentials.is_some() && credentials != connection.dialled.credentials {
            info!("the files of the user or of TLS have changed: connects anew");
            ConnectionCause::Credentials
        } else if missing >= MISSING {
            warn!("the store's name has other addresses than that of a connection: replaces it");
            ConnectionCause::Moved
        } else if let Some((own, newer)) = server {
            warn!(
                "two servers have answered at the store's address, run_id {own} and then {newer}: leaves the first"
            );
            ConnectionCause::Moved
        } else {
            continue;
        };
        // One at a time.
        let _replacing = pool.replacing.lock().await;
        match open(pool, cause).await {
            Ok(opened) if opened.slow.is_none() => return Ok(opened),
            Ok(_) => {}
            Err(error) => warn!("keeps the connection that it has: {error}"),
        }
    }
}

/// Asks a server for its `run_id`; returns it together with that of another server to which the node's address has led since, if
/// there is one.
pub async fn ask(
    pool: &ConnectionPool,
    connection: &Connection,
) -> Result<Option<(String, String)>, StoreError> {
    let deadline = || Deadline::after(pool.common.dialer.answer_timeout);
    if !pool.clustered && is_replica(connection, deadline()).await.unwrap_or(false) {
        return Err(ConnectionError::Replica.into());
    }
    let asked: Result<String, _> = connection.ask(&redis::cmd("INFO"), false, deadline()).await;
    // The user may not, or the supervisor notices it.
    let Ok(info) = asked else {
        return Ok(None);
    };
    let policy = field(&info, "maxmemory_policy").filter(|policy| *policy != "noeviction");
    let evicts = policy.filter(|_| field(&info, "maxmemory") != Some("0"));
    let evicted = field(&info, "evicted_keys").and_then(|keys| keys.parse().ok());
    if pool.note_eviction(evicts.is_some(), evicted.unwrap_or(0)) {
        warn!(
            "Redis evicts keys when its memory is full (maxmemory-policy {}), and with them what was admitted: \
             set `maxmemory-policy noeviction`",
            evicts.unwrap_or_default()
        );
    }
    let own = field(&info, "run_id").unwrap_or_default();
    let newer = pool.newer_server(connection.opened, own);
    Ok(newer.map(|newer| (own.to_owned(), newer)))
}

/// Whether a name is known not to have the address of a connection.
async fn is_missing(dialled: &Dialled) -> bool {
    let (Some(peer), Ok(now)) = (dialled.peer, addresses(&dialled.endpoint).await) else {
        return false;
    };
    !now.is_empty() && now.iter().all(|address| address.ip() != peer)
}

/// A field of INFO.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
