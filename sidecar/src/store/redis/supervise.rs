//! The owner of a connection: makes it, looks at it, replaces it. Decisions only ever take what it holds out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use super::backoff::Backoff;
use super::links::Links;
use super::live::{Deadline, Live, Sign};
use super::probe::{Found, role};
use crate::store::error::{ConnectionError, StoreError};

/// How often a connection is looked at that tells nothing by itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two looks, and how often a Redis is looked at that refuses.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// The shortest time after which a look at it is in vain.
const LOOK_WITHIN: Duration = Duration::from_millis(50);
/// A connection that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(1);

/// Keeps one connection of a node, until it is aborted.
pub async fn supervise(shared: Arc<Links>, number: usize) {
    let mut backoff = Backoff::default();
    let mut place = shared.place.clone();
    loop {
        let cause = match connect(&shared).await {
            Err(cause) => cause,
            Ok((live, mut driver)) => {
                shared.found(number, &live);
                let since = Instant::now();
                let cause = watch(&shared, number, &live, &mut driver).await;
                if since.elapsed() >= GOOD {
                    backoff.reset();
                }
                cause
            }
        };
        shared.lost(number, cause);
        shared.doubted.notify_one();
        tokio::select! {
            () = sleep(backoff.pause()) => {}
            Ok(()) = place.changed() => {}
        }
    }
}

/// One attempt. A connection that is handed out runs the script and is one to a primary.
async fn connect(shared: &Links) -> Result<(Arc<Live>, JoinSet<()>), StoreError> {
    let common = &shared.common;
    let mut place = shared.place.clone();
    let endpoint = place
        .wait_for(|place| !matches!(place, Err(StoreError::Connection(ConnectionError::NotYet))))
        .await
        .map_err(|_| ConnectionError::NotYet)?
        .clone()?;
    let (connection, driver) = common.dialer.dial(&endpoint).await?;
    // Aborted when it is dropped.
    let mut task = JoinSet::new();
    task.spawn(driver);
    let before = shared.last();
    let live = Live::new(connection, before.as_deref(), Arc::clone(&common.steps));
    let live = Arc::new(live);
    let silent = |error| match error {
        StoreError::Timeout(within) => ConnectionError::Silent(within).into(),
        error => error,
    };
    let deadline = || Deadline::after(common.dialer.patience());
    if !shared.clustered {
        role(&live, deadline()).await.map_err(silent)?;
    }
    // The first call brings the script; the second is what decisions will have to wait for. A Redis that is too slow for
    // them is not handed out.
    let first = shared.probe().look(&live, &common.script, deadline()).await;
    let found = match first {
        Found::Fine => {
            let deadline = Deadline::after(common.dialer.store_timeout());
            shared.probe().look(&live, &common.script, deadline).await
        }
        other => other,
    };
    match found {
        Found::Fine => shared.writes(),
        Found::Refuses(cause) => shared.refused(cause),
        Found::Useless(cause) => return Err(silent(cause)),
    }
    warn_of_eviction(shared, &live).await;
    Ok((live, task))
}

/// Watches a connection until it is of no more use.
async fn watch(
    shared: &Links,
    number: usize,
    live: &Arc<Live>,
    driver: &mut JoinSet<()>,
) -> StoreError {
    let mut place = shared.place.clone();
    place.mark_unchanged();
    let mut signs = live.signs();
    loop {
        let pause = if shared.refuses() {
            LOOK_AGAIN
        } else {
            LOOK_EVERY.saturating_sub(live.silent_for()).max(LOOK_AGAIN)
        };
        let doubt = tokio::select! {
            biased;
            Ok(()) = signs.changed() => match signs.borrow_and_update().clone() {
                Sign::Fine => continue,
                Sign::Discard(cause) => return cause,
                Sign::Look(cause) => Some(cause),
            },
            _ = driver.join_next() => return ConnectionError::Closed.into(),
            Ok(()) = place.changed() => return ConnectionError::Moved.into(),
            () = sleep(pause) => None,
        };
        match &doubt {
            Some(cause) => shared.lost(number, cause.clone()),
            None if live.silent_for() < LOOK_EVERY && !shared.refuses() => continue,
            None => {}
        }
        let common = &shared.common;
        let within = LOOK_WITHIN.max(common.dialer.store_timeout());
        let look = shared.probe();
        let look = look.look(live, &common.script, Deadline::after(within));
        match look.await {
            Found::Fine => shared.writes(),
            Found::Refuses(cause) => shared.refused(cause),
            Found::Useless(StoreError::Timeout(_)) => return ConnectionError::BecameSilent.into(),
            Found::Useless(cause) => return cause,
        }
        if doubt.is_some() {
            live.fine();
            shared.found(number, live);
        }
    }
}

/// A Redis that evicts forgets admissions. Says so once; a user who may not ask is not told.
async fn warn_of_eviction(shared: &Links, live: &Live) {
    let common = &shared.common;
    if common.warned.load(Ordering::Relaxed) {
        return;
    }
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    let deadline = Deadline::after(common.dialer.patience());
    let Ok(info) = live.ask::<String>(&info, deadline).await else {
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
