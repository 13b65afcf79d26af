//! Who is primary, by the sentinels: asked every second and whenever a connection to the primary is lost.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::dial::Dialer;
use super::node::Place;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

const ASK_EVERY: Duration = Duration::from_secs(1);
/// The shortest pause between two questions, and how often they are asked while no sentinel has an answer.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// What the sentinels say. They are asked until this is dropped.
pub struct Sentinels {
    primary: Place,
    _task: JoinSet<()>,
}

struct Asker {
    dialer: Dialer,
    sentinels: Vec<Endpoint>,
    name: String,
    /// The one to ask next.
    next: usize,
    /// To that one.
    connection: Option<(MultiplexedConnection, JoinSet<()>)>,
}

impl Sentinels {
    /// Begins to ask, in the current runtime; at once whenever somebody doubts the last answer.
    pub fn ask(dialer: Dialer, sentinels: Vec<Endpoint>, name: &str, doubted: Arc<Notify>) -> Self {
        let (told, primary) = watch::channel(Err(ConnectionError::NotYet.into()));
        let mut asker = Asker {
            dialer,
            sentinels,
            name: name.to_owned(),
            next: 0,
            connection: None,
        };
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let answer = asker.ask().await;
                let known = answer.is_ok();
                told.send_if_modified(|last| {
                    let news = match (&*last, &answer) {
                        (Ok(last), Ok(answer)) => last != answer,
                        // While the sentinels are away the primary stays who it was.
                        (Ok(_), Err(_)) => false,
                        (Err(_), _) => true,
                    };
                    if news {
                        *last = answer;
                    }
                    news
                });
                sleep(ASK_AGAIN).await;
                if known {
                    tokio::select! {
                        () = sleep(ASK_EVERY) => {}
                        // Another sentinel may know better.
                        () = doubted.notified() => asker.turn(),
                    }
                }
            }
        });
        Self {
            primary,
            _task: task,
        }
    }

    /// Where the primary is.
    pub fn primary(&self) -> Place {
        self.primary.clone()
    }
}

impl Asker {
    /// One sentinel after the other, until one knows.
    async fn ask(&mut self) -> Result<Endpoint, StoreError> {
        let mut last = ConnectionError::NoPrimary.into();
        for _ in 0..self.sentinels.len() {
            match self.ask_one().await {
                Ok(Some(primary)) => return Ok(primary),
                Ok(None) => last = ConnectionError::NoPrimary.into(),
                Err(error) => last = error,
            }
            self.turn();
        }
        Err(last)
    }

    fn turn(&mut self) {
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
        let answer = command.query_async::<Option<(String, u16)>>(connection);
        let answer = timeout(ANSWER_WITHIN, answer)
            .await
            .map_err(|_| ConnectionError::Silent(ANSWER_WITHIN))??;
        Ok(answer.map(|(host, port)| Endpoint::Tcp(host, port)))
    }
}
