//! A connection in use: its calls, the time of its last reply, and its health.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::clock::Clock;
use crate::lock::lock;
use crate::store::commands::{Each, Script};
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
    /// To be probed, and usable meanwhile: what it refused is no decision.
    Questioned,
    /// To be probed; calls fail until a probe succeeds.
    Suspect(StoreError),
    /// To be replaced.
    Broken(StoreError),
}

/// A connection in use.
pub struct Connection {
    connection: MultiplexedConnection,
    clock: Mutex<Clock>,
    opened: Instant,
    /// Each call in flight has a clone.
    in_flight: Arc<()>,
    /// Calls without an answer since the last answered one.
    unanswered: AtomicU32,
    /// When the first of them was sent, in milliseconds after the connection was opened.
    unanswered_since_ms: AtomicU64,
    /// When the last answer came, likewise.
    last_reply_ms: AtomicU64,
    health: watch::Sender<ConnectionHealth>,
    /// Counts steps of Redis's clock, over all connections of the store.
    clock_steps: Arc<AtomicU64>,
}

/// The deadline of a call, and its timeout, for the error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
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

    /// The deadline.
    pub const fn at(self) -> Instant {
        self.at
    }

    /// The error for a missed deadline.
    pub const fn timeout_error(self) -> StoreError {
        StoreError::Timeout(self.timeout)
    }
}

impl Connection {
    /// A connection that has just been opened.
    ///
    /// `clock_of` is the previous connection: a clock step between the two counts too.
    pub fn new(
        connection: MultiplexedConnection,
        clock_of: Option<&Self>,
        clock_steps: Arc<AtomicU64>,
    ) -> Self {
        let opened = Instant::now();
        let clock =
            clock_of.map_or_else(|| Clock::new(opened), |before| lock(&before.clock).clone());
        Self {
            connection,
            clock: Mutex::new(clock),
            opened,
            in_flight: Arc::default(),
            unanswered: AtomicU32::new(0),
            unanswered_since_ms: AtomicU64::new(0),
            last_reply_ms: AtomicU64::new(0),
            health: watch::Sender::new(ConnectionHealth::Healthy),
            clock_steps,
        }
    }

    /// Notifies of changes of its health.
    pub fn health_changes(&self) -> watch::Receiver<ConnectionHealth> {
        self.health.subscribe()
    }

    /// When it was opened.
    pub const fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether the last call was answered.
    pub fn answered_last_call(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Calls in flight, and one.
    pub fn in_flight(&self) -> usize {
        Arc::strong_count(&self.in_flight)
    }

    /// Time since the last answer.
    pub fn silent_for(&self) -> Duration {
        let last_reply = Duration::from_millis(self.last_reply_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(last_reply)
    }

    /// For how much longer an answer may take before the connection is replaced.
    pub fn may_be_silent_for(&self) -> Duration {
        if self.answered_last_call() {
            return REPLACED_AFTER;
        }
        let since = Duration::from_millis(self.unanswered_since_ms.load(Ordering::Relaxed));
        REPLACED_AFTER.saturating_sub(self.opened.elapsed().saturating_sub(since))
    }

    /// Calls the script; returns the outcome of each decision or bucket. It is sent once, and again only where Redis
    /// answers that it did nothing: it has lost the script, or the call was late because its clock was set.
    pub async fn invoke<O: Operation>(
        &self,
        script: &Script,
        operation: &O,
        asking: bool,
        deadline: Deadline,
    ) -> Result<Each<O::Answer>, StoreError> {
        let mut with_text = false;
        let mut was_late = false;
        loop {
            let not_after_us = lock(&self.clock).at(deadline.at);
            let sent = Instant::now();
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
                self.clock_steps.fetch_add(1, Ordering::Relaxed);
            }
            match reply.each {
                Some(each) => return Ok(each),
                None if was_late => return Err(StoreError::Late),
                None => was_late = true,
            }
        }
    }

    /// Redis's clock now, in microseconds, if known.
    pub fn clock_us(&self) -> Option<u64> {
        lock(&self.clock).at(Instant::now())
    }

    /// Sends a command, preceded by ASKING where a node of a Cluster answered ASK.
    pub async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection.clone();
        if !asking {
            let _guard = Arc::clone(&self.in_flight);
            let answer = timeout_at(deadline.at.into(), command.query_async(&mut connection)).await;
            return self.record(answer.ok(), deadline);
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let answers = connection.req_packed_commands(&both, 0, 2);
        let answers = timeout_at(deadline.at.into(), answers).await.ok();
        let answer = answers.map(|answers| {
            let second = answers?.into_iter().nth(1).unwrap_or(Value::Nil);
            Ok(T::from_redis_value(second.extract_error()?)?)
        });
        self.record(answer, deadline)
    }

    /// Sends a command whose result does not affect decisions: no result changes the connection's health.
    pub async fn ask<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection.clone();
        match timeout_at(deadline.at.into(), command.query_async(&mut connection)).await {
            Ok(answer) => answer.map_err(StoreError::from),
            Err(_) => Err(deadline.timeout_error()),
        }
    }

    /// The same as a sign of life: that there is no answer counts as for a decision. What it refuses says nothing of
    /// decisions, but asks for a probe.
    pub async fn announce<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let answer = self.ask(command, deadline).await;
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

    /// Updates the health from a call's result.
    fn record<T>(
        &self,
        answer: Option<redis::RedisResult<T>>,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let Some(answer) = answer else {
            self.missed(deadline);
            return Err(deadline.timeout_error());
        };
        let answer = answer.map_err(StoreError::of_call);
        match &answer {
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

    fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
        let now_ms = self.ms_at(Instant::now());
        self.last_reply_ms.store(now_ms, Ordering::Relaxed);
    }

    /// A call had no answer until its deadline.
    fn missed(&self, deadline: Deadline) {
        let before = self.unanswered.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            let sent_ms = self.ms_at(deadline.at - deadline.timeout);
            self.unanswered_since_ms.store(sent_ms, Ordering::Relaxed);
        }
        if before + 1 >= MAX_UNANSWERED {
            self.report(ConnectionHealth::Suspect(deadline.timeout_error()));
        }
    }

    fn ms_at(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.opened);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }

    /// Marks the connection as healthy after a successful probe.
    pub fn set_healthy(&self) {
        self.health.send_replace(ConnectionHealth::Healthy);
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
