//! The look at a connection: a call of the script that writes. A Redis that is full, read-only or forbids a command of
//! the script answers PING all the same.

use redis::{ErrorKind, ServerErrorKind};
use sluicegate_engine::script::outcomes;
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};

use super::live::{Deadline, Live};
use crate::store::call::{Request, Script};
use crate::store::error::{ConnectionError, StoreError};

/// What a look found.
pub enum Found {
    /// It writes.
    Fine,
    /// It answers, and does not write.
    Refuses(StoreError),
    /// It is of no use.
    Useless(StoreError),
}

/// A decision on buckets of nobody's: one of each kind of state, so that it needs the commands that decisions need.
pub struct Probe {
    batch: Batch,
}

/// Both admit whoever looks.
const LIMIT: u64 = 1_000_000_000;
const WINDOW_US: u64 = 1_000_000;

impl Probe {
    /// In the slot of this tag.
    pub fn new(tag: &str) -> Self {
        let bucket = |name, algorithm| Bucket {
            key: format!("sg:{{{tag}}}:{name}:probe"),
            spec: BucketSpec {
                algorithm,
                limit: LIMIT,
                window_us: WINDOW_US,
            },
        };
        let take = |bucket| Take { bucket, cost: 1 };
        Self {
            batch: Batch {
                buckets: vec![
                    bucket("fixed", Algorithm::FixedWindow),
                    bucket("log", Algorithm::SlidingLog),
                ],
                decisions: vec![Decision {
                    takes: vec![take(0), take(1)],
                    peek: false,
                    receipts: Vec::new(),
                }],
            },
        }
    }

    /// Looks. The buckets are deleted again.
    pub async fn look(&self, live: &Live, script: &Script, deadline: Deadline) -> Found {
        let request = Request::decide(&self.batch);
        let decide = || {
            live.invoke(script, &request, false, deadline, |reply| {
                outcomes(&self.batch, reply)
            })
        };
        let mut decided = decide().await;
        if matches!(decided, Err(StoreError::Late)) {
            // Its clock is ahead of the one before. Now that is known.
            decided = decide().await;
        }
        let reset = script.reset(self.batch.buckets.iter().map(|bucket| bucket.key.as_str()));
        let looked = match decided {
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
