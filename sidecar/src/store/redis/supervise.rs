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

/// How often an idle connection is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two probes, and the interval while Redis refuses them.
const MIN_PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The lower bound of a probe's timeout.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(50);
/// A connection that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Keeps one connection of a node open, until the task is aborted.
pub async fn supervise(pool: Arc<ConnectionPool>, number: usize) {
    let mut backoff = Backoff::default();
    let mut address = pool.address.clone();
    loop {
        // Marked as seen when it is dialled: a change after that ends the connection, however long the dial takes.
        let mut dialled = pool.address.clone();
        let cause = match connect(&pool, &mut dialled).await {
            Err(cause) => cause,
            Ok((connection, mut driver)) => {
                pool.set_usable(number, &connection);
                // After the connection is offered: no decision waits for this.
                warn_of_eviction(&pool, &connection).await;
                let since = Instant::now();
                let cause = watch(&pool, number, &connection, (&mut driver, dialled)).await;
                if since.elapsed() >= STABLE_AFTER {
                    backoff.reset();
                }
                cause
            }
        };
        pool.set_unusable(number, cause);
        pool.recheck.notify_one();
        tokio::select! {
            () = sleep(backoff.pause()) => {}
            Ok(()) = address.changed() => {}
        }
    }
}

/// One attempt to connect. A connection is offered only if it runs the script on a primary.
async fn connect(
    pool: &ConnectionPool,
    address: &mut AddressWatch,
) -> Result<(Arc<Connection>, JoinSet<()>), StoreError> {
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
    let silent = |error| match error {
        StoreError::Timeout(within) => ConnectionError::Silent(within).into(),
        error => error,
    };
    let deadline = || Deadline::after(common.dialer.answer_timeout());
    if !pool.clustered {
        role(&connection, deadline()).await.map_err(silent)?;
    }
    // The first call loads the script; the second takes as long as decisions will. A Redis that is too slow for their
    // deadline is not offered.
    let first = pool
        .probe()
        .run(&connection, &common.script, deadline())
        .await;
    let result = match first {
        ProbeResult::Writable => {
            let deadline = Deadline::after(common.dialer.store_timeout());
            pool.probe()
                .run(&connection, &common.script, deadline)
                .await
        }
        other => other,
    };
    match result {
        ProbeResult::Writable => pool.probe_succeeded(),
        ProbeResult::Refused(cause) => pool.probe_refused(cause),
        ProbeResult::Unusable(cause) => return Err(silent(cause)),
    }
    Ok((connection, task))
}

/// Watches a connection, with its driver and its address, until it is useless; returns why.
async fn watch(
    pool: &ConnectionPool,
    number: usize,
    connection: &Arc<Connection>,
    (driver, mut address): (&mut JoinSet<()>, AddressWatch),
) -> StoreError {
    let mut changes = connection.health_changes();
    loop {
        let pause = if pool.is_refusing() {
            MIN_PROBE_INTERVAL
        } else {
            PROBE_INTERVAL
                .saturating_sub(connection.silent_for())
                .max(MIN_PROBE_INTERVAL)
        };
        let suspected = tokio::select! {
            biased;
            Ok(()) = changes.changed() => match changes.borrow_and_update().clone() {
                ConnectionHealth::Healthy => continue,
                ConnectionHealth::Broken(cause) => return cause,
                ConnectionHealth::Suspect(cause) => Some(cause),
            },
            _ = driver.join_next() => return ConnectionError::Closed.into(),
            Ok(()) = address.changed() => return ConnectionError::Moved.into(),
            () = sleep(pause) => None,
        };
        match &suspected {
            Some(cause) => pool.set_unusable(number, cause.clone()),
            None if connection.silent_for() < PROBE_INTERVAL && !pool.is_refusing() => continue,
            None => {}
        }
        let common = &pool.common;
        let within = MIN_PROBE_TIMEOUT.max(common.dialer.store_timeout());
        let probe = pool.probe();
        let probe = probe.run(connection, &common.script, Deadline::after(within));
        match probe.await {
            ProbeResult::Writable => pool.probe_succeeded(),
            ProbeResult::Refused(cause) => pool.probe_refused(cause),
            ProbeResult::Unusable(StoreError::Timeout(_)) => {
                return ConnectionError::BecameSilent.into();
            }
            ProbeResult::Unusable(cause) => return cause,
        }
        if suspected.is_some() {
            connection.set_healthy();
            pool.set_usable(number, connection);
        }
    }
}

/// A Redis that evicts keys forgets admissions: warns once, if the ACL permits the question.
async fn warn_of_eviction(pool: &ConnectionPool, connection: &Connection) {
    let common = &pool.common;
    if common.warned.load(Ordering::Relaxed) {
        return;
    }
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let deadline = Deadline::after(common.dialer.answer_timeout());
    let Ok(info) = connection.ask::<String>(&info, deadline).await else {
        return;
    };
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let policy = field("maxmemory_policy").unwrap_or("noeviction");
    let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    if bounded && policy != "noeviction" && !common.warned.swap(true, Ordering::Relaxed) {
        warn!(
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}), and with them what was admitted: \
             set `maxmemory-policy noeviction`"
        );
    }
}
