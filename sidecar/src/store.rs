//! Where the state is kept. One seam, three stores: each takes a batch and answers an outcome for each decision.

mod call;
mod cluster;
mod memory;
mod redis;

use std::time::Duration;

use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{Batch, Outcome};

use crate::policy::StoreAddress;

/// A store, and the deadline of every call to it.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    timeout: Duration,
}

#[derive(Debug)]
enum Kind {
    /// In this process.
    Memory(memory::Memory),
    /// In one Redis, shared by a fleet.
    Redis(redis::Redis),
    /// In a Redis Cluster.
    Cluster(Box<cluster::Cluster>),
}

/// A decision that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What became of it.
    pub outcome: Outcome,
    /// When each of its takes was taken, microseconds of the clock of whatever keeps it; what a give-back has to name.
    pub taken_at_us: Vec<u64>,
}

/// What a store says to a batch: for each decision what became of it, or nothing where its part of the store
/// did not answer; and why.
#[derive(Debug, Default)]
pub struct Settlement {
    /// In the order of the decisions.
    pub decisions: Vec<Option<Settled>>,
    /// One for each call that failed.
    pub errors: Vec<StoreError>,
}

impl Settlement {
    /// The answer of a store that is in one place.
    fn whole(batch: &Batch, answer: Result<Vec<Outcome>, StoreError>) -> Self {
        match answer {
            Err(error) => Self {
                decisions: vec![None; batch.decisions.len()],
                errors: vec![error],
            },
            Ok(outcomes) => {
                let settle = |(outcome, decision): (Outcome, &sluicegate_engine::Decision)| {
                    Some(Settled {
                        outcome,
                        taken_at_us: vec![outcome.at_us; decision.takes.len()],
                    })
                };
                let decisions = outcomes
                    .into_iter()
                    .zip(&batch.decisions)
                    .map(settle)
                    .collect();
                Self {
                    decisions,
                    errors: Vec::new(),
                }
            }
        }
    }
}

/// Why a store gave no answer. Says nothing of keys or of the store's address: both may be secrets.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the policy's `store_timeout`.
    #[error("no answer from the store within {0:?}")]
    Timeout(Duration),
    /// The URL in the policy is not one of Redis.
    #[error("`store` is not a Redis URL: {}", without_detail(.0))]
    Address(#[source] ::redis::RedisError),
    /// Redis could not be reached, or the connection broke.
    #[error("cannot reach Redis: {}", without_arguments(.0))]
    Connection(#[source] ::redis::RedisError),
    /// Redis answered with an error.
    #[error("Redis refused the script: {}", without_arguments(.0))]
    Refused(#[source] ::redis::RedisError),
    /// The script answered something that is not a reply to this batch.
    #[error("the script's reply cannot be read: {0}")]
    Reply(#[source] sluicegate_engine::script::ReplyError),
}

/// Why a URL cannot be used; the detail is a piece of the URL.
fn without_detail(error: &::redis::RedisError) -> String {
    let said = error.to_string();
    let detail = error.detail().unwrap_or_default();
    said.strip_suffix(detail)
        .unwrap_or("it cannot be read")
        .trim_end_matches([':', ' '])
        .to_owned()
}

/// Redis's error without the arguments that Redis repeats of a command it does not know: `HELLO` and `AUTH` have the
/// password among theirs.
fn without_arguments(error: &::redis::RedisError) -> String {
    let said = error.to_string();
    match said.split_once(", with args beginning with") {
        Some((before, _)) => before.to_owned(),
        None => said,
    }
}

impl StoreError {
    /// The kind, as a metric's label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Address(_) => "address",
            Self::Connection(_) => "connection",
            Self::Refused(_) => "refused",
            Self::Reply(_) => "reply",
        }
    }
}

impl Store {
    /// Opens the store. Redis need not be there yet: the connection is made when it is first needed.
    ///
    /// # Errors
    /// The address cannot be understood.
    pub fn open(address: &StoreAddress, timeout: Duration) -> Result<Self, StoreError> {
        let kind = match address {
            StoreAddress::Memory => Kind::Memory(memory::Memory::default()),
            StoreAddress::Redis(url) => Kind::Redis(redis::Redis::open(url)?),
            StoreAddress::Cluster(urls) => {
                Kind::Cluster(Box::new(cluster::Cluster::open(urls, timeout)?))
            }
        };
        Ok(Self { kind, timeout })
    }

    /// What it is, for people.
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory(_) => "the sidecar's memory",
            Kind::Redis(_) => "Redis",
            Kind::Cluster(_) => "Redis Cluster",
        }
    }

    /// Whether parts of it may be away while others answer.
    pub const fn has_parts(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    /// The deadline of every call.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes the decisions of a batch in order; later ones see what earlier ones took. On a Cluster a decision over
    /// several slots is taken slot by slot, and what was taken is given back if one of them denies.
    pub async fn decide(&self, batch: &Batch) -> Settlement {
        match &self.kind {
            Kind::Memory(memory) => Settlement::whole(batch, Ok(memory.decide(batch))),
            Kind::Redis(redis) => {
                Settlement::whole(batch, within(self.timeout, redis.decide(batch)).await)
            }
            Kind::Cluster(cluster) => cluster.decide(batch).await,
        }
    }

    /// Makes the decisions without waiting, if this store is one that can.
    pub fn decide_at_once(&self, batch: &Batch) -> Option<Settlement> {
        match &self.kind {
            Kind::Memory(memory) => Some(Settlement::whole(batch, Ok(memory.decide(batch)))),
            Kind::Redis(_) | Kind::Cluster(_) => None,
        }
    }

    /// Returns units to buckets; how many each had returned.
    ///
    /// # Errors
    /// Some of them are not known to have been returned.
    pub async fn give_back(&self, returns: &[GiveBack<'_>]) -> Result<Vec<u64>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.give_back(returns)),
            Kind::Redis(redis) => within(self.timeout, redis.give_back(returns)).await,
            Kind::Cluster(cluster) => cluster.give_back(returns).await,
        }
    }

    /// Makes buckets whole, by their keys; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        match &self.kind {
            Kind::Memory(memory) => Ok(memory.reset(keys)),
            Kind::Redis(redis) => within(self.timeout, redis.reset(keys)).await,
            Kind::Cluster(cluster) => cluster.reset(keys).await,
        }
    }

    /// Frees what has expired. Redis does so by itself.
    pub fn sweep(&self) {
        if let Kind::Memory(memory) = &self.kind {
            memory.sweep();
        }
    }

    /// Whether the store answers at all.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match &self.kind {
            Kind::Memory(_) => Ok(()),
            Kind::Redis(redis) => within(self.timeout, redis.ping()).await,
            Kind::Cluster(cluster) => cluster.ping().await,
        }
    }
}

/// The one place where a store's deadline is kept. A call that is given up may still take in Redis what it asked for:
/// units may be lost that way until their window has passed, never gained.
async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(deadline, call)
        .await
        .unwrap_or(Err(StoreError::Timeout(deadline)))
}
