//! Where the state is kept. One seam, two stores: both take a batch and answer an outcome for each decision.

mod memory;
mod redis;

use sluicegate_engine::{Batch, Outcome};

use crate::policy::StoreAddress;

/// A store of either kind.
#[derive(Debug)]
pub enum Store {
    /// In this process.
    Memory(memory::Memory),
    /// In Redis, shared by a fleet.
    Redis(redis::Redis),
}

/// Why a store gave no answer. Says nothing of keys or of the store's address: both may be secrets.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the policy's `store_timeout`.
    #[error("no answer from the store within {0:?}")]
    Timeout(std::time::Duration),
    /// The URL in the policy is not one of Redis.
    #[error("`store` is not a Redis URL: {0}")]
    Address(#[source] ::redis::RedisError),
    /// Redis could not be reached, or the connection broke.
    #[error("cannot reach Redis: {0}")]
    Connection(#[source] ::redis::RedisError),
    /// Redis answered with an error.
    #[error("Redis refused the script: {0}")]
    Refused(#[source] ::redis::RedisError),
    /// The script answered something that is not a reply to this batch.
    #[error("the script's reply cannot be read: {0}")]
    Reply(#[source] sluicegate_engine::script::ReplyError),
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
    pub fn open(address: &StoreAddress) -> Result<Self, StoreError> {
        Ok(match address {
            StoreAddress::Memory => Self::Memory(memory::Memory::default()),
            StoreAddress::Redis(url) => Self::Redis(redis::Redis::open(url)?),
        })
    }

    /// Makes the decisions of a batch in order; later ones see what earlier ones took.
    ///
    /// # Errors
    /// None of them is known to have been made. The caller sets the deadline.
    pub async fn decide(&self, batch: &Batch) -> Result<Vec<Outcome>, StoreError> {
        match self {
            Self::Memory(memory) => Ok(memory.decide(batch)),
            Self::Redis(redis) => redis.decide(batch).await,
        }
    }

    /// Frees what has expired. Redis does so by itself.
    pub fn sweep(&self) {
        if let Self::Memory(memory) = self {
            memory.sweep();
        }
    }

    /// Whether the store answers at all.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.ping().await,
        }
    }
}
