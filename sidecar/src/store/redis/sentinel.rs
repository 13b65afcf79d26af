//! The current primary, as named by the sentinels: each is asked every second and whenever a connection to the primary is lost.
//! The highest configuration epoch wins: a sentinel that was cut off names the primary of before.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, ParsingError, RedisError, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::dial::{Dialer, Dialled};
use super::pool::Recheck;
use crate::lock::lock;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError, is_not_yet};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two polls, and the poll interval of a sentinel that has no answer.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// For how long the answer of a sentinel that has become silent counts: another one may know only the primary before.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The primary that a sentinel names, if it knows one, and the configuration epoch: 0 if its user may not read that.
type Named = Result<Option<(Endpoint, u64)>, StoreError>;

/// The last answer of each sentinel, and when it came.
struct Answers {
    last: Mutex<Vec<(Instant, Named)>>,
    tell: Box<dyn Fn(Result<Endpoint, StoreError>) + Send + Sync>,
}

/// Starts to poll, in the current runtime; also at once after each `recheck`. After each answer it tells the primary's address, or why
/// there is none.
pub fn poll_all(
    dialer: Dialer,
    sentinels: &[Endpoint],
    name: &str,
    recheck: &Recheck,
    tasks: &mut JoinSet<()>,
    tell: impl Fn(Result<Endpoint, StoreError>) + Send + Sync + 'static,
) {
    let nothing = |_| (Instant::now(), Err(ConnectionError::NotYet.into()));
    let answers = Arc::new(Answers {
        last: Mutex::new(sentinels.iter().map(nothing).collect()),
        tell: Box::new(tell),
    });
    let dialer = Arc::new(dialer);
    for (number, endpoint) in sentinels.iter().enumerate() {
        let sentinel = (Arc::clone(&dialer), endpoint.clone(), name.to_owned());
        let recheck = recheck.subscribe();
        tasks.spawn(poll(number, sentinel, Arc::clone(&answers), recheck));
    }
}

impl Answers {
    fn note(&self, number: usize, named: Named) {
        let mut all = lock(&self.last);
        if let Some((when, before)) = all.get_mut(number) {
            let is_remembered = before.is_ok() && when.elapsed() < REMEMBERED;
            if named.is_ok() || !is_remembered {
                (*when, *before) = (Instant::now(), named);
            }
        }
        (self.tell)(primary(all.iter().map(|(_, named)| named)));
    }
}

/// The primary of the highest epoch; among equals the one that most sentinels name, and then the one that the first sentinel names.
fn primary<'a>(all: impl Iterator<Item = &'a Named> + Clone) -> Result<Endpoint, StoreError> {
    let named = all
        .clone()
        .filter_map(|named| named.as_ref().ok()?.as_ref());
    let count = |of: &(Endpoint, u64)| named.clone().filter(|one| *one == of).count();
    let best = named.clone().enumerate();
    let best = best.max_by_key(|(number, one)| (one.1, count(one), Reverse(*number)));
    if let Some((_, (endpoint, _))) = best {
        return Ok(endpoint.clone());
    }
    let errors = || all.clone().filter_map(|named| named.as_ref().err());
    let unknown = errors().find(|error| is_not_yet(error));
    let error = unknown.or_else(|| errors().last());
    Err(error.map_or(ConnectionError::NoPrimary.into(), StoreError::clone))
}

/// Polls one of them, for ever, by one connection for as long as it answers.
async fn poll(
    number: usize,
    (dialer, endpoint, name): (Arc<Dialer>, Endpoint, String),
    answers: Arc<Answers>,
    mut recheck: watch::Receiver<()>,
) {
    let mut kept = None;
    loop {
        let named = async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => dialer.dial(&endpoint).await?,
            };
            let named = ask(&mut connection, &name).await?;
            kept = Some(connection);
            Ok(named)
        };
        let named = named.await;
        let succeeded = matches!(named, Ok(Some(_)));
        answers.note(number, named);
        sleep(MIN_POLL_INTERVAL).await;
        if succeeded {
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                Ok(()) = recheck.changed() => {}
            }
        }
    }
}

async fn ask(sentinel: &mut Dialled, name: &str) -> Named {
    let named = query(sentinel, "GET-MASTER-ADDR-BY-NAME", name).await?;
    let Some(named) = primary_of(named).map_err(RedisError::from)? else {
        return Ok(None);
    };
    let facts = query(sentinel, "MASTER", name).await.ok();
    let facts = facts.and_then(|facts| HashMap::<String, String>::from_redis_value(facts).ok());
    let epoch = facts.and_then(|facts| facts.get("config-epoch")?.parse().ok());
    Ok(Some((named, epoch.unwrap_or(0))))
}

async fn query(sentinel: &mut Dialled, what: &str, name: &str) -> Result<Value, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    command.arg(what).arg(name);
    let answer = command.query_async(&mut sentinel.connection);
    let answer = timeout(ANSWER_TIMEOUT, answer).await;
    Ok(answer.map_err(|_| ConnectionError::Silent(ANSWER_TIMEOUT))??)
}

/// The address that a sentinel answers; `None` if it knows no primary of that name.
///
/// # Errors
/// The answer is no address.
pub fn primary_of(answer: Value) -> Result<Option<Endpoint>, ParsingError> {
    let answer = Option::<(String, u16)>::from_redis_value(answer)?;
    Ok(answer.map(|(host, port)| Endpoint::Tcp(host, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_epoch_wins_then_the_most_then_the_first() {
        let at = |port| Endpoint::Tcp("redis".to_owned(), port);
        let named = |port, epoch| Ok(Some((at(port), epoch)));
        let silent = || Err(ConnectionError::Closed.into());
        let chosen = |all: &[Named]| primary(all.iter()).ok();
        assert_eq!(
            chosen(&[named(1, 3), named(1, 3), named(2, 4), silent()]),
            Some(at(2))
        );
        assert_eq!(
            chosen(&[named(1, 0), named(2, 0), named(2, 0)]),
            Some(at(2))
        );
        assert_eq!(chosen(&[silent(), named(1, 0), named(2, 0)]), Some(at(1)));
        assert_eq!(chosen(&[Ok(None), silent()]), None);
    }
}
