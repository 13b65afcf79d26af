//! The owner of a connection: opens, probes and replaces it. Decisions only use connections that it offers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use super::backoff::Backoff;
use super::connection::{Connection, ConnectionHealth, Deadline};
use super::pool::{AddressWatch, ConnectionPool};
use super::probe::{ProbeResult, role};
use crate::store::error::{ConnectionError, StoreError};

/// A node that has been silent for this long is probed, on one connection. Decisions and announcements are answers too.
const IDLE_PROBE_AFTER: Duration = Duration::from_millis(7_500);
/// How often to look whether it has been.
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
    let mut address = pool.address.clone();
    loop {
        let turn = pool.turn().await;
        // Marked as seen when it is dialled: a change after that ends the connection, however long the dial takes.
        let mut dialled = pool.address.clone();
        let began = Instant::now();
        let connected = connect(&pool, &mut dialled).await;
        let was_slow = began.elapsed() >= SLOW_AFTER;
        let cause = match connected {
            Err(cause) => cause,
            Ok((connection, mut driver, slow)) => {
                if slow.is_none() {
                    pool.set_usable(number, &connection);
                }
                drop(turn);
                // After the connection is offered: no decision waits for this.
                warn_of_eviction(&pool, &connection).await;
                let since = Instant::now();
                let watched = (&mut driver, dialled);
                let cause = watch(&pool, number, &connection, watched, slow).await;
                if since.elapsed() >= STABLE_AFTER {
                    backoff.reset();
                }
                cause
            }
        };
        pool.set_unusable(number, cause);
        pool.recheck.notify_one();
        tokio::select! {
            () = sleep(backoff.pause(was_slow)) => {}
            Ok(()) = address.changed() => {}
        }
    }
}

/// One attempt to connect. A connection is offered only if it runs the script on a primary; if that took longer than
/// decisions wait, it says so.
async fn connect(
    pool: &ConnectionPool,
    address: &mut AddressWatch,
) -> Result<(Arc<Connection>, JoinSet<()>, Option<StoreError>), StoreError> {
    let common = &pool.common;
    let endpoint = address
        .wait_for(|address| {
            !matches!(
                address,
                Err(StoreError::Connection(ConnectionError::NotYet))
            )
        })
        .await
        .map_err(|_| ConnectionError::NotYet)?
        .clone()?;
    let (connection, driver) = common.dialer.dial(&endpoint).await?;
    common.monitor.connected();
    // Aborts the driver when it is dropped.
    let mut task = JoinSet::new();
    task.spawn(driver);
    let before = pool.last_connection();
    let connection = Connection::new(
        connection,
        before.as_deref(),
        Arc::clone(&common.clock_steps),
    );
    let connection = Arc::new(connection);
    let deadline = || Deadline::after(common.dialer.answer_timeout());
    if !pool.clustered {
        role(&connection, deadline())
            .await
            .map_err(StoreError::on_new_connection)?;
    }
    let probe = pool.probe();
    let mut began = Instant::now();
    let mut result = probe.run(&connection, &common.script, deadline()).await;
    if matches!(result, ProbeResult::Writable) && began.elapsed() > common.dialer.store_timeout() {
        // It may have had to load the script, or to resume.
        began = Instant::now();
        result = probe.run(&connection, &common.script, deadline()).await;
    }
    match result {
        ProbeResult::Writable => pool.probe_succeeded(),
        ProbeResult::Refused(cause) => pool.probe_refused(cause),
        ProbeResult::Unusable(cause) => return Err(cause.on_new_connection()),
    }
    Ok((connection, task, slow(pool, began.elapsed())))
}

/// Why a Redis that took so long is too slow, if it is.
fn slow(pool: &ConnectionPool, took: Duration) -> Option<StoreError> {
    let most = pool.common.dialer.store_timeout();
    (took > most).then(|| ConnectionError::Slow(took, most).into())
}

/// Watches a connection, with its driver and its address, until it is useless; returns why. It is not offered while it is
/// suspected: not answering, or, as one that is `slow`, too late for decisions.
async fn watch(
    pool: &ConnectionPool,
    number: usize,
    connection: &Arc<Connection>,
    (driver, mut address): (&mut JoinSet<()>, AddressWatch),
    slow_at_first: Option<StoreError>,
) -> StoreError {
    let mut changes = connection.health_changes();
    let mut backoff = Backoff::default();
    let mut suspected = slow_at_first;
    loop {
        let pause = if matches!(
            suspected,
            Some(StoreError::Connection(ConnectionError::Slow(..)))
        ) {
            backoff.pause(true)
        } else if suspected.is_some() {
            Duration::ZERO
        } else if pool.is_refusing() {
            REFUSED_PROBE_EVERY
        } else {
            IDLE_LOOK_EVERY
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
            _ = driver.join_next() => return ConnectionError::Closed.into(),
            Ok(()) = address.changed() => return ConnectionError::Moved.into(),
            () = sleep(pause) => if idle && !pool.is_refusing() && !is_to_be_probed(pool, connection) {
                continue;
            },
        }
        let common = &pool.common;
        let within = match &suspected {
            Some(cause) => {
                pool.set_unusable(number, cause.clone());
                pool.question_all();
                connection.may_be_silent_for()
            }
            // Calls use it meanwhile.
            None => common.dialer.store_timeout().max(MIN_PROBE_TIMEOUT),
        };
        let (probe, began) = (pool.probe(), Instant::now());
        let deadline = Deadline::after(within);
        match probe.run(connection, &common.script, deadline).await {
            ProbeResult::Writable => pool.probe_succeeded(),
            ProbeResult::Refused(cause) => pool.probe_refused(cause),
            ProbeResult::Unusable(cause @ StoreError::Timeout(_)) if suspected.is_none() => {
                suspected = Some(cause);
                continue;
            }
            ProbeResult::Unusable(StoreError::Timeout(_)) => {
                return ConnectionError::BecameSilent.into();
            }
            ProbeResult::Unusable(cause) => return cause,
        }
        if suspected.is_some() {
            suspected = slow(pool, began.elapsed());
        }
        connection.set_healthy();
        if suspected.is_none() {
            backoff.reset();
            pool.set_usable(number, connection);
        }
    }
}

/// Whether this connection is the one to ask a node that has been silent.
fn is_to_be_probed(pool: &ConnectionPool, connection: &Arc<Connection>) -> bool {
    let quietest = pool.quietest();
    pool.silent_for() >= IDLE_PROBE_AFTER
        && quietest.is_some_and(|quietest| Arc::ptr_eq(&quietest, connection))
}

/// A Redis that evicts keys forgets admissions: warns once, if the ACL permits the question.
async fn warn_of_eviction(pool: &ConnectionPool, connection: &Connection) {
    let common = &pool.common;
    if common.asked_of_eviction.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let deadline = Deadline::after(common.dialer.answer_timeout());
    let info = match connection.ask::<String>(&info, deadline).await {
        Ok(info) => info,
        Err(StoreError::Refused(_)) => return,
        Err(_) => return common.asked_of_eviction.store(false, Ordering::Relaxed),
    };
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    if bounded && policy != "noeviction" {
        warn!(
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}), and with them what was admitted: \
             set `maxmemory-policy noeviction`"
        );
    }
}
