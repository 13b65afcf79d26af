//! The look at a connection: a call of the script that writes. A Redis that is full, read-only or forbids a command of
//! the script answers PING all the same.

use redis::{ErrorKind, ServerErrorKind};
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};

use super::live::{Deadline, Live};
use crate::store::call::{Request, Script};
use crate::store::error::{ConnectionError, StoreError};
use sluicegate_engine::script::outcomes;

/// What a look found.
pub enum Found {
    /// It writes.
    Fine,
    /// It answers, and does not write.
    Refuses(StoreError),
    /// It is of no use.
    Useless(StoreError),
}

/// A decision on a bucket of nobody's.
pub struct Probe {
    batch: Batch,
    key: String,
}

impl Probe {
    /// In the slot of this tag.
    pub fn new(tag: &str) -> Self {
        let key = format!("sg:{{{tag}}}:probe");
        Self {
            batch: Batch {
                buckets: vec![Bucket {
                    key: key.clone(),
                    spec: BucketSpec {
                        algorithm: Algorithm::FixedWindow,
                        limit: 1_000_000_000,
                        window_us: 1_000_000,
                    },
                }],
                decisions: vec![Decision {
                    takes: vec![Take { bucket: 0, cost: 1 }],
                    peek: false,
                    receipts: Vec::new(),
                }],
            },
            key,
        }
    }

    /// Looks. The bucket is deleted again.
    pub async fn look(&self, live: &Live, script: &Script, deadline: Deadline) -> Found {
        let request = Request::decide(&self.batch);
        let decided = live.invoke(script, &request, false, deadline, |reply| {
            outcomes(&self.batch, reply)
        });
        let reset = script.reset(&self.key);
        // The connection keeps their order.
        let looked = match decided.await {
            Ok(_) => live.query::<u64>(&reset, deadline).await.map(|_| ()),
            Err(error) => Err(error),
        };
        match looked {
            Ok(()) => Found::Fine,
            Err(error) if is_elsewhere(&error) => Found::Fine,
            Err(error @ StoreError::Timeout(_)) => Found::Useless(error),
            Err(error) if error.ends_connection() => Found::Useless(error),
            Err(error) => Found::Refuses(error),
        }
    }
}

/// The slot has moved: the node is fine.
fn is_elsewhere(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused(error) if matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
    ))
}

/// Whether this is a Redis that takes writes, as far as it says. A user who may not ask is believed to be right.
pub async fn role(live: &Live, deadline: Deadline) -> Result<(), StoreError> {
    let answer: Result<Vec<redis::Value>, _> = live.ask(&redis::cmd("ROLE"), deadline).await;
    match answer {
        Ok(role) => match role.first() {
            Some(redis::Value::BulkString(role)) if role == b"slave" => {
                Err(ConnectionError::Replica.into())
            }
            _ => Ok(()),
        },
        Err(StoreError::Refused(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
