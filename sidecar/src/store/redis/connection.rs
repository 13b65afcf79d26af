//! A connection in use: its calls, the time of its last reply, and its health.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::clock::Clock;
use super::common::Common;
use super::dial::Dialled;
use super::server::Server;
use crate::lock::lock;
use crate::policy::Endpoint;
use crate::store::commands::Each;
use crate::store::error::StoreError;
use sluicegate_engine::script::Operation;

/// After this many calls in a row without an answer, the connection is probed before it gets another call.
const MAX_UNANSWERED: u32 = 2;
/// A connection without any answer for this long after a call is replaced.
const REPLACED_AFTER: Duration = Duration::from_secs(3);

/// The health of a connection, for its supervisor.
#[derive(Clone, Debug)]
pub enum ConnectionHealth {
    /// Usable.
    Healthy,
    /// To be probed, and usable meanwhile: the command that Redis refused was not a decision.
    Questioned,
    /// To be probed; calls fail until a probe succeeds.
    Suspect(StoreError),
    /// To be replaced.
    Broken(StoreError),
}

/// A connection in use. It closes when it is dropped.
pub struct Connection {
    /// Shared with the others of its store.
    pub common: Arc<Common>,
    /// Its transport, and where that leads.
    pub dialled: Dialled,
    /// What it has told of its server.
    pub server: Server,
    /// What its replies say of Redis's clock.
    pub clock: Arc<Mutex<Clock>>,
    /// Each call in flight has a clone.
    in_flight: Arc<()>,
    replies: Mutex<Replies>,
    /// For its supervisor.
    pub health: watch::Sender<ConnectionHealth>,
}

/// When Redis answered, and whether it does.
struct Replies {
    /// When the last answer came, or when the connection was opened.
    last: Instant,
    /// Calls without an answer since then.
    unanswered: u32,
    /// When the first of them was sent.
    unanswered_since: Instant,
}

/// The deadline of a call, and its timeout, for the error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The deadline.
    pub at: Instant,
    timeout: Duration,
}

impl Deadline {
    /// A deadline after this timeout.
    pub fn after(timeout: Duration) -> Self {
        Self {
            at: Instant::now() + timeout,
            timeout,
        }
    }
}

impl Connection {
    /// Connects. `clock_of` is the previous connection's: a clock step between the two counts too.
    pub async fn open(
        common: &Arc<Common>,
        endpoint: &Endpoint,
        clock_of: Option<&Mutex<Clock>>,
    ) -> Result<Self, StoreError> {
        let dialled = common.dialer.dial(endpoint).await?;
        let opened = Instant::now();
        let clock = clock_of.map_or_else(|| Clock::new(opened), |before| lock(before).clone());
        Ok(Self {
            common: Arc::clone(common),
            dialled,
            server: Server::default(),
            clock: Arc::new(Mutex::new(clock)),
            in_flight: Arc::default(),
            replies: Mutex::new(Replies {
                last: opened,
                unanswered: 0,
                unanswered_since: opened,
            }),
            health: watch::Sender::new(ConnectionHealth::Healthy),
        })
    }

    /// A deadline for an answer for which no decision waits.
    pub fn patience(&self) -> Deadline {
        Deadline::after(self.common.dialer.answer_timeout)
    }

    /// Whether the last call was answered.
    pub fn answered_last_call(&self) -> bool {
        lock(&self.replies).unanswered == 0
    }

    /// One more than the number of calls in flight.
    pub fn in_flight(&self) -> usize {
        Arc::strong_count(&self.in_flight)
    }

    /// Time since the last answer.
    pub fn silent_for(&self) -> Duration {
        lock(&self.replies).last.elapsed()
    }

    /// For how much longer an answer may take before the connection is replaced.
    pub fn may_be_silent_for(&self) -> Duration {
        let replies = lock(&self.replies);
        if replies.unanswered == 0 {
            return REPLACED_AFTER;
        }
        REPLACED_AFTER.saturating_sub(replies.unanswered_since.elapsed())
    }

    /// Calls the script; returns the outcome of each decision or bucket. It is sent once, and again only where Redis
    /// answers that it did nothing: it has lost the script, or the call was late because its clock was set.
    pub async fn invoke<O: Operation>(
        &self,
        operation: &O,
        asking: bool,
        deadline: Deadline,
    ) -> Result<Each<O::Answer>, StoreError> {
        let mut with_text = false;
        let mut was_late = false;
        loop {
            let not_after_us = lock(&self.clock).at(deadline.at);
            let sent = Instant::now();
            let script = &self.common.script;
            let command = script.command(operation, not_after_us, with_text);
            let reply: Result<Vec<u8>, _> = self.query(&command, asking, deadline).await;
            if !with_text && reply.as_ref().is_err_and(is_no_script) {
                with_text = true;
                continue;
            }
            let reply = operation.read(&reply?).map_err(|error| {
                // Perhaps no answer can be read.
                self.question();
                StoreError::Reply(error)
            })?;
            if lock(&self.clock).observe(reply.now_us, sent, Instant::now()) {
                self.common.clock_steps.fetch_add(1, Ordering::Relaxed);
            }
            match reply.each {
                Some(each) => return Ok(each),
                None if was_late => return Err(StoreError::Late),
                None => was_late = true,
            }
        }
    }

    /// Sends a command for a decision: its result updates the connection's health.
    pub async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let _guard = Arc::clone(&self.in_flight);
        let answer = self.ask(command, asking, deadline).await;
        match &answer {
            Err(StoreError::Timeout(_)) => self.missed(deadline),
            Err(error) if error.ends_connection() => {
                self.report(ConnectionHealth::Broken(error.clone().before_call()))
            }
            // Redis may refuse every call, or only this one.
            Err(error) if error.is_refusal() => {
                self.report(ConnectionHealth::Suspect(error.clone()))
            }
            _ => self.answered(),
        }
        answer
    }

    /// Sends a command, preceded by ASKING where a node of a Cluster answered ASK. Its result does not affect decisions: none
    /// changes the connection's health.
    pub async fn ask<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let mut connection = self.dialled.connection.clone();
        let answer = async {
            if !asking {
                return command.query_async(&mut connection).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let answers = connection.req_packed_commands(&both, 0, 2).await?;
            let second = answers.into_iter().nth(1).unwrap_or(Value::Nil);
            Ok(T::from_redis_value(second.extract_error()?)?)
        };
        match timeout_at(deadline.at.into(), answer).await {
            Ok(answer) => answer.map_err(StoreError::from),
            Err(_) => Err(StoreError::Timeout(deadline.timeout)),
        }
    }

    /// Makes a call that also shows whether the connection is alive: a missing answer counts like that to a decision. If Redis
    /// refuses the command, that says nothing about decisions, but a probe follows.
    pub async fn announce<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let answer = self.ask(command, asking, deadline).await;
        match &answer {
            Ok(_) => self.answered(),
            Err(StoreError::Timeout(_)) => self.missed(deadline),
            Err(error) if is_no_script(error) => self.answered(),
            Err(error) if error.is_refusal() => self.question(),
            Err(_) => {}
        }
        answer
    }

    /// Asks for a probe.
    pub fn question(&self) {
        self.report(ConnectionHealth::Questioned);
    }

    fn answered(&self) {
        let mut replies = lock(&self.replies);
        replies.unanswered = 0;
        replies.last = Instant::now();
    }

    /// A call had no answer until its deadline.
    fn missed(&self, deadline: Deadline) {
        let mut replies = lock(&self.replies);
        if replies.unanswered == 0 {
            replies.unanswered_since = deadline.at - deadline.timeout;
        }
        replies.unanswered = replies.unanswered.saturating_add(1);
        if replies.unanswered >= MAX_UNANSWERED {
            let cause = StoreError::Timeout(deadline.timeout);
            self.report(ConnectionHealth::Suspect(cause));
        }
    }

    fn report(&self, health: ConnectionHealth) {
        use ConnectionHealth::{Broken, Healthy, Questioned, Suspect};
        self.health.send_if_modified(|now| {
            let changed = match now {
                Broken(_) => false,
                Suspect(_) => !matches!(health, Suspect(_) | Questioned),
                Healthy | Questioned => true,
            };
            if changed {
                *now = health;
            }
            changed
        });
    }
}

pub fn is_no_script(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(error)
        if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}
