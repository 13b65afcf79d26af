//! A connection that is in use: what was heard on it and when, and what to do with it next.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::timeout_at;

use super::clock::Clock;
use crate::store::call::{Each, Request, Script};
use crate::store::error::StoreError;
use sluicegate_engine::script::{Reply, ReplyError};

/// So many calls in a row without an answer, and the connection is looked at before it gets another.
const MISSES: u32 = 2;

/// What its owner should do.
#[derive(Clone, Debug)]
pub enum Sign {
    /// Nothing.
    Fine,
    /// Look whether it still answers; calls fail until it does.
    Look(StoreError),
    /// Replace it.
    Discard(StoreError),
}

/// A connection in use.
pub struct Live {
    connection: MultiplexedConnection,
    clock: Mutex<Clock>,
    opened: Instant,
    /// Calls under way.
    busy: AtomicU32,
    /// Calls without an answer since the last one with.
    misses: AtomicU32,
    /// When the last answer came, milliseconds after it was opened.
    heard_ms: AtomicU64,
    sign: watch::Sender<Sign>,
    /// Counts steps of Redis's clock, over all connections of the store.
    steps: Arc<AtomicU64>,
}

/// A deadline of a call, and how long that was, for the error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    of: Duration,
}

impl Deadline {
    /// So much from now on.
    pub fn after(of: Duration) -> Self {
        Self {
            at: Instant::now() + of,
            of,
        }
    }

    /// When.
    pub const fn at(self) -> Instant {
        self.at
    }

    /// What to say when it has passed.
    pub const fn missed(self) -> StoreError {
        StoreError::Timeout(self.of)
    }
}

impl Live {
    /// One that has just been opened.
    ///
    /// `clock_of` is the connection before: a step between the two is one too.
    pub fn new(
        connection: MultiplexedConnection,
        clock_of: Option<&Self>,
        steps: Arc<AtomicU64>,
    ) -> Self {
        let opened = Instant::now();
        let clock = clock_of.map_or_else(|| Clock::new(opened), |before| before.clock().clone());
        Self {
            connection,
            clock: Mutex::new(clock),
            opened,
            busy: AtomicU32::new(0),
            misses: AtomicU32::new(0),
            heard_ms: AtomicU64::new(0),
            sign: watch::Sender::new(Sign::Fine),
            steps,
        }
    }

    /// What its owner should do, from now on.
    pub fn signs(&self) -> watch::Receiver<Sign> {
        self.sign.subscribe()
    }

    /// The last call had an answer.
    pub fn answers(&self) -> bool {
        self.misses.load(Ordering::Relaxed) == 0
    }

    /// Calls under way.
    pub fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    /// How long ago there was an answer.
    pub fn silent_for(&self) -> Duration {
        let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(heard)
    }

    /// Calls the script; for each decision or bucket what became of it. It is sent once, and once more only where Redis
    /// says that it did nothing: it has lost the script, or took the call for late because its clock was set.
    pub async fn invoke<T>(
        &self,
        script: &Script,
        request: &Request<'_>,
        asking: bool,
        deadline: Deadline,
        read: impl Fn(&[u8]) -> Result<Reply<T>, ReplyError>,
    ) -> Result<Each<T>, StoreError> {
        let mut by_hash = true;
        let mut was_late = false;
        loop {
            let not_after_us = self.clock().at(deadline.at);
            let sent = Instant::now();
            let command = if by_hash {
                script.by_hash(request, not_after_us)
            } else {
                script.whole(request, not_after_us)
            };
            let reply: Result<Vec<u8>, _> = self.query_asking(&command, asking, deadline).await;
            if by_hash && reply.as_ref().is_err_and(is_no_script) {
                by_hash = false;
                continue;
            }
            let reply = read(&reply?).map_err(StoreError::Reply)?;
            if self.clock().told(reply.now_us(), sent, Instant::now()) {
                self.steps.fetch_add(1, Ordering::Relaxed);
            }
            match reply {
                Reply::Done { each, .. } => return Ok(each),
                Reply::Late { .. } if was_late => return Err(StoreError::Late),
                Reply::Late { .. } => was_late = true,
            }
        }
    }

    /// Redis's clock now, as far as it is known: microseconds.
    pub fn clock_us(&self) -> Option<u64> {
        self.clock().at(Instant::now())
    }

    /// Sends a command.
    pub async fn query<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection.clone();
        let _under_way = UnderWay::begin(&self.busy);
        let answer = timeout_at(deadline.at.into(), command.query_async(&mut connection)).await;
        self.ended(answer.ok(), deadline)
    }

    /// Asks for something that has no part in decisions: whatever comes of it, the connection stays.
    pub async fn ask<T: FromRedisValue>(
        &self,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection.clone();
        match timeout_at(deadline.at.into(), command.query_async(&mut connection)).await {
            Ok(answer) => answer.map_err(StoreError::from),
            Err(_) => Err(deadline.missed()),
        }
    }

    /// Sends a command, and with `asking` says that a node of a Cluster has referred to this one for this time.
    pub async fn query_asking<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        if !asking {
            return self.query(command, deadline).await;
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut connection = self.connection.clone();
        let answers = connection.req_packed_commands(&both, 0, 2);
        let answers = timeout_at(deadline.at.into(), answers).await.ok();
        let answer = answers.map(|answers| {
            let second = answers?.into_iter().nth(1).unwrap_or(Value::Nil);
            Ok(T::from_redis_value(second.extract_error()?)?)
        });
        self.ended(answer, deadline)
    }

    /// Draws the conclusions of a call.
    fn ended<T>(
        &self,
        answer: Option<redis::RedisResult<T>>,
        deadline: Deadline,
    ) -> Result<T, StoreError> {
        let Some(answer) = answer else {
            let error = deadline.missed();
            if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= MISSES {
                self.tell(Sign::Look(error.clone()));
            }
            return Err(error);
        };
        let answer = answer.map_err(StoreError::from);
        match &answer {
            Err(error) if error.ends_connection() => self.tell(Sign::Discard(error.clone())),
            // It may refuse every call, or only this one.
            Err(error) if error.is_refusal() => self.tell(Sign::Look(error.clone())),
            _ => {
                self.misses.store(0, Ordering::Relaxed);
                let now = self.opened.elapsed().as_millis();
                let now = u64::try_from(now).unwrap_or(u64::MAX);
                self.heard_ms.store(now, Ordering::Relaxed);
            }
        }
        answer
    }

    /// Its owner has seen it answer.
    pub fn fine(&self) {
        self.sign.send_replace(Sign::Fine);
    }

    fn tell(&self, sign: Sign) {
        self.sign.send_if_modified(|now| {
            let known = (&*now, &sign);
            let news = !matches!(
                known,
                (Sign::Discard(_), _) | (Sign::Look(_), Sign::Look(_))
            );
            if news {
                *now = sign;
            }
            news
        });
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        // Nothing that is done under it panics.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that is counted as long as this lives.
struct UnderWay<'a>(&'a AtomicU32);

impl<'a> UnderWay<'a> {
    fn begin(busy: &'a AtomicU32) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(busy)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_no_script(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(error)
        if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}
