//! The current primary, as named by the sentinels: polled every second and whenever a connection to the primary is lost.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ParsingError, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::dial::Dialer;
use super::node::AddressWatch;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two polls, and the poll interval while no sentinel has an answer.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Polls the sentinels until it is dropped.
pub struct Sentinels {
    primary: AddressWatch,
    _task: JoinSet<()>,
}

struct SentinelClient {
    dialer: Dialer,
    sentinels: Vec<Endpoint>,
    name: String,
    /// Index of the sentinel to ask next.
    next: usize,
    /// The connection to that sentinel.
    connection: Option<(MultiplexedConnection, JoinSet<()>)>,
}

impl Sentinels {
    /// Starts to poll, in the current runtime; also at once whenever `recheck` is notified.
    pub fn ask(dialer: Dialer, sentinels: Vec<Endpoint>, name: &str, recheck: Arc<Notify>) -> Self {
        let (sender, primary) = watch::channel(Err(ConnectionError::NotYet.into()));
        let mut client = SentinelClient {
            dialer,
            sentinels,
            name: name.to_owned(),
            next: 0,
            connection: None,
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let answer = client.ask().await;
                let succeeded = answer.is_ok();
                sender.send_if_modified(|last| {
                    let changed = match (&*last, &answer) {
                        (Ok(last), Ok(answer)) => last != answer,
                        // While no sentinel answers, the last known primary stays.
                        (Ok(_), Err(_)) => false,
                        (Err(_), _) => true,
                    };
                    if changed {
                        *last = answer;
                    }
                    changed
                });
                sleep(MIN_POLL_INTERVAL).await;
                if succeeded {
                    tokio::select! {
                        () = sleep(POLL_INTERVAL) => {}
                        // Another sentinel may know better.
                        () = recheck.notified() => client.next_sentinel(),
                    }
                }
            }
        });
        Self {
            primary,
            _task: task,
        }
    }

    /// The primary's address.
    pub fn primary(&self) -> AddressWatch {
        self.primary.clone()
    }
}

impl SentinelClient {
    /// Asks one sentinel after the other, until one knows the primary.
    async fn ask(&mut self) -> Result<Endpoint, StoreError> {
        let mut last = ConnectionError::NoPrimary.into();
        for _ in 0..self.sentinels.len() {
            match self.ask_one().await {
                Ok(Some(primary)) => return Ok(primary),
                Ok(None) => last = ConnectionError::NoPrimary.into(),
                Err(error) => last = error,
            }
            self.next_sentinel();
        }
        Err(last)
    }

    fn next_sentinel(&mut self) {
        self.connection = None;
        self.next = (self.next + 1) % self.sentinels.len().max(1);
    }

    async fn ask_one(&mut self) -> Result<Option<Endpoint>, StoreError> {
        if self.connection.is_none() {
            let endpoint = self.sentinels.get(self.next);
            let endpoint = endpoint.ok_or(ConnectionError::NoPrimary)?;
            let (connection, driver) = self.dialer.dial(endpoint).await?;
            let mut task = JoinSet::new();
            task.spawn(driver);
            self.connection = Some((connection, task));
        }
        let Some((connection, _)) = &mut self.connection else {
            return Ok(None);
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let answer = timeout(ANSWER_TIMEOUT, command.query_async(connection))
            .await
            .map_err(|_| ConnectionError::Silent(ANSWER_TIMEOUT))??;
        Ok(primary_of(answer).map_err(RedisError::from)?)
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
