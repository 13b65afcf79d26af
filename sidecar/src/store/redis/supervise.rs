//! The owner of a connection: opens, probes and replaces it. Decisions only use connections that it offers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tracing::{info, warn};

use super::backoff::{Backoff, random_part};
use super::connection::{Connection, ConnectionHealth, Deadline};
use super::open::{Opened, open, slow};
use super::pool::ConnectionPool;
use super::probe::is_replica;
use crate::store::error::{ConnectionError, StoreError};
use crate::telemetry::labels::ConnectionCause;

/// How long a connection lives at most, unless none can replace it. Names, credentials, the server and its role are looked at for each
/// new one.
const LONGEST_LIFE: Duration = Duration::from_secs(30);
/// A node that has been silent for this long is probed, on one connection. Decisions and announcements are answers too.
const IDLE_PROBE_AFTER: Duration = Duration::from_millis(7_500);
/// How often that is checked.
const IDLE_LOOK_EVERY: Duration = Duration::from_millis(2_500);
/// How often a Redis that refuses probes is probed.
const REFUSED_PROBE_EVERY: Duration = Duration::from_millis(500);
/// How long an answer to a probe of a connection in use takes at most.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(50);
/// A connection that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// An attempt that fails later than this was slow.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// Keeps one connection of a node open, until the task is aborted.
pub async fn supervise(pool: Arc<ConnectionPool>, number: usize) {
    let mut backoff = Backoff::default();
    let (mut why, mut next) = (pool.begins, None);
    loop {
        let (turn, began) = (pool.turn().await, Instant::now());
        let opened = match next.take() {
            Some(opened) => Ok(opened),
            None => open(&pool, why).await,
        };
        let was_slow = began.elapsed() >= SLOW_AFTER;
        let cause = match opened {
            Err(cause) => cause,
            Ok(opened) => {
                if opened.slow.is_none() {
                    pool.offer(number, &opened.connection);
                }
                drop(turn);
                let since = Instant::now();
                let connection = Arc::clone(&opened.connection);
                let ended = tokio::select! {
                    cause = watch(&pool, number, opened) => Err(cause),
                    opened = successor(&pool, &connection) => opened,
                };
                let cause = match ended {
                    // Calls that are under way on this connection keep it open.
                    Ok(opened) => {
                        next = Some(opened);
                        continue;
                    }
                    Err(cause) => cause,
                };
                if since.elapsed() >= STABLE_AFTER {
                    backoff.reset();
                }
                why = cause.cause();
                cause
            }
        };
        pool.withdraw(number, cause);
        pool.recheck.send_replace(());
        sleep(backoff.pause(was_slow)).await;
    }
}

/// Waits until a connection has lived for long enough, and returns the one that replaces it; meanwhile it is used. Fails with the
/// reason why nothing may use it any longer.
async fn successor(pool: &ConnectionPool, connection: &Connection) -> Result<Opened, StoreError> {
    loop {
        sleep(LONGEST_LIFE - random_part(LONGEST_LIFE / 3)).await;
        // One at a time.
        let _replacing = pool.replacing.lock().await;
        let credentials = pool.common.dialer.credentials().await;
        let why = if credentials.is_some() && credentials != connection.dialled.credentials {
            info!("the files of the user or of TLS have changed: connects anew");
            ConnectionCause::Credentials
        } else {
            ConnectionCause::Planned
        };
        let failed = match open(pool, why).await {
            Ok(opened) if opened.slow.is_none() => return Ok(opened),
            opened => opened.err(),
        };
        if is_replica(connection).await.unwrap_or(false) {
            return Err(ConnectionError::Replica.into());
        }
        match failed {
            Some(error @ StoreError::Connection(ConnectionError::Sharded)) => return Err(error),
            Some(error) => warn!("keeps the connection that it has: {error}"),
            None => {}
        }
    }
}

/// Watches a connection until it is useless; returns why. It is not offered while it is suspected: not answering, or, as one
/// that is `slow`, too late for decisions.
async fn watch(pool: &ConnectionPool, number: usize, opened: Opened) -> StoreError {
    let connection = &opened.connection;
    let mut closed = connection.dialled.closed.clone();
    let mut changes = connection.health.subscribe();
    let mut backoff = Backoff::default();
    let mut suspected = opened.slow;
    // The pause between two probes of a connection that is too slow.
    let mut slow_pause = backoff.pause(true);
    loop {
        let pause = match &suspected {
            Some(StoreError::Connection(ConnectionError::Slow(..))) => slow_pause,
            Some(_) => Duration::ZERO,
            None if pool.is_refusing() => REFUSED_PROBE_EVERY,
            None => IDLE_LOOK_EVERY,
        };
        let idle = suspected.is_none();
        tokio::select! {
            biased;
            Ok(()) = changes.changed() => match changes.borrow_and_update().clone() {
                ConnectionHealth::Healthy => continue,
                ConnectionHealth::Broken(cause) => return cause,
                ConnectionHealth::Suspect(cause) => suspected = Some(cause),
                ConnectionHealth::Questioned => {}
            },
            _ = closed.changed() => return ConnectionError::Closed.into(),
            () = sleep(pause) => if idle && !pool.is_refusing() && !is_to_be_probed(pool, connection) {
                continue;
            },
        }
        let within = match &suspected {
            Some(cause) => {
                pool.withdraw(number, cause.clone());
                pool.question_all();
                connection.may_be_silent_for()
            }
            // Calls use it meanwhile.
            None => pool.common.dialer.store_timeout.max(MIN_PROBE_TIMEOUT),
        };
        let began = Instant::now();
        match pool.probe(connection, Deadline::after(within)).await {
            Ok(()) => {}
            Err(cause @ StoreError::Timeout(_)) if suspected.is_none() => {
                suspected = Some(cause);
                continue;
            }
            Err(StoreError::Timeout(_)) => return ConnectionError::BecameSilent.into(),
            Err(cause) => return cause,
        }
        if suspected.is_some() {
            suspected = slow(pool, began.elapsed());
        }
        connection.health.send_replace(ConnectionHealth::Healthy);
        if suspected.is_none() {
            backoff.reset();
            pool.offer(number, connection);
        }
        slow_pause = backoff.pause(true);
    }
}

/// Whether this connection is the one to ask a node that has been silent.
fn is_to_be_probed(pool: &ConnectionPool, connection: &Arc<Connection>) -> bool {
    let quietest = pool.quietest();
    quietest.is_some_and(|quietest| Arc::ptr_eq(&quietest, connection))
        && (pool.usable()).all(|one| one.silent_for() >= IDLE_PROBE_AFTER)
}
