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
use super::node::{AddressWatch, Recheck};
use crate::lock::lock;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two polls, and the poll interval of a sentinel that has no answer.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// For how long the answer of a sentinel that has become silent counts: another one may know only the primary before.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Polls the sentinels until it is dropped.
pub struct Sentinels {
    /// The primary's address.
    pub primary: AddressWatch,
    _tasks: JoinSet<()>,
}

/// The primary that a sentinel names, if it knows one, and the configuration epoch: 0 if its user may not read that.
type Named = Result<Option<(Endpoint, u64)>, StoreError>;

/// The last answer of each sentinel, and when it came.
struct Answers {
    last: Mutex<Vec<(Instant, Named)>>,
    primary: watch::Sender<Result<Endpoint, StoreError>>,
}

struct SentinelClient {
    dialer: Arc<Dialer>,
    endpoint: Endpoint,
    name: String,
    connection: Option<Dialled>,
}

impl Sentinels {
    /// Starts to poll, in the current runtime; also at once after each `recheck`.
    pub fn ask(dialer: Dialer, sentinels: Vec<Endpoint>, name: &str, recheck: &Recheck) -> Self {
        let unknown = || ConnectionError::NotYet.into();
        let (sender, primary) = watch::channel(Err(unknown()));
        let nothing = sentinels.iter().map(|_| (Instant::now(), Err(unknown())));
        let answers = Arc::new(Answers {
            last: Mutex::new(nothing.collect()),
            primary: sender,
        });
        let dialer = Arc::new(dialer);
        let mut tasks = JoinSet::new();
        for (number, endpoint) in sentinels.into_iter().enumerate() {
            let client = SentinelClient {
                dialer: Arc::clone(&dialer),
                endpoint,
                name: name.to_owned(),
                connection: None,
            };
            tasks.spawn(client.poll(number, Arc::clone(&answers), recheck.subscribe()));
        }
        Self {
            primary,
            _tasks: tasks,
        }
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
        let answer = primary(all.iter().map(|(_, named)| named));
        self.primary.send_if_modified(|last| {
            // While no sentinel answers, the last known primary stays.
            let stays = |last| answer.as_ref().map_or(true, |answer| answer == last);
            let changed = !last.as_ref().is_ok_and(stays);
            if changed {
                *last = answer;
            }
            changed
        });
    }
}

/// The primary of the highest epoch; among equals, what most sentinels name, and then what the first one does.
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
    let is_unknown =
        |error: &&StoreError| matches!(error, StoreError::Connection(ConnectionError::NotYet));
    let error = errors().find(is_unknown).or_else(|| errors().last());
    Err(error.map_or(ConnectionError::NoPrimary.into(), StoreError::clone))
}

impl SentinelClient {
    async fn poll(
        mut self,
        number: usize,
        answers: Arc<Answers>,
        mut recheck: watch::Receiver<()>,
    ) {
        loop {
            let named = self.ask().await;
            let succeeded = matches!(named, Ok(Some(_)));
            if named.is_err() {
                self.connection = None;
            }
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

    async fn ask(&mut self) -> Named {
        if self.connection.is_none() {
            self.connection = Some(self.dialer.dial(&self.endpoint).await?);
        }
        let named = self.query("GET-MASTER-ADDR-BY-NAME").await?;
        let Some(named) = primary_of(named).map_err(RedisError::from)? else {
            return Ok(None);
        };
        let facts = self.query("MASTER").await.ok();
        let facts = facts.and_then(|facts| HashMap::<String, String>::from_redis_value(facts).ok());
        let epoch = facts.and_then(|facts| facts.get("config-epoch")?.parse().ok());
        Ok(Some((named, epoch.unwrap_or(0))))
    }

    async fn query(&mut self, what: &str) -> Result<Value, StoreError> {
        let dialled = self.connection.as_mut().ok_or(ConnectionError::Closed)?;
        let mut command = redis::cmd("SENTINEL");
        command.arg(what).arg(&self.name);
        let answer = command.query_async(&mut dialled.connection);
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        Ok(answer.map_err(|_| ConnectionError::Silent(ANSWER_TIMEOUT))??)
    }
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
