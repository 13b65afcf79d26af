//! The probe of a connection: a call of the script that writes. A Redis that is full, is read-only or forbids a command
//! of the script would still answer PING.

use redis::Value;
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};

use super::connection::{Connection, Deadline};
use crate::store::error::StoreError;

/// Large enough that both buckets admit every probe.
const LIMIT: u64 = 1_000_000_000;
const WINDOW_US: u64 = 1_000_000;

/// A decision over buckets of its own, one of each kind of state, so that it needs every command that decisions need: in the slot
/// of this tag, or without one in two slots, as decisions of a single Redis are, so that a node of a Cluster refuses it. Where
/// `EVALSHA` is unknown because it was renamed, Redis's error repeats the first 128 bytes of the arguments; the redis crate ends
/// the connection if they are not UTF-8. So the keys, which come before binary arguments, are long.
pub fn probe(tag: &str) -> Batch {
    let [first, second] = match tag {
        "" => ["probe", "another-probe"],
        tag => [tag; 2],
    };
    let bucket = |tag, name, algorithm| Bucket {
        key: format!("sg:{{{tag}}}:{name}:written-to-try-all-commands:probe"),
        spec: BucketSpec {
            algorithm,
            quota: LIMIT,
            window_us: WINDOW_US,
        },
    };
    let take = |bucket| Take { bucket, cost: 1 };
    Batch {
        buckets: vec![
            bucket(first, "fixed", Algorithm::FixedWindow),
            bucket(second, "log", Algorithm::SlidingLog),
        ],
        decisions: vec![Decision {
            takes: vec![take(0), take(1)],
            peek: false,
            asks: false,
            holds: Vec::new(),
            slots: Vec::new(),
        }],
    }
}

/// Runs a probe: whether Redis accepts writes. Its buckets expire by themselves, a second or two later. In a Cluster, it is no
/// fault of the node that the slot has moved or is on its way.
pub async fn run(
    probe: &Batch,
    connection: &Connection,
    deadline: Deadline,
) -> Result<(), StoreError> {
    let decide = || connection.invoke(probe, false, deadline);
    let mut decided = decide().await;
    if matches!(decided, Err(StoreError::Late)) {
        // Its clock is ahead of the previous node's, which the late reply has shown.
        decided = decide().await;
    }
    match decided {
        Err(error) if !connection.common.is_elsewhere(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether this Redis reports that it is a replica; not where the ACL does not permit the question, and not in a Cluster, whose slot
/// map tells the primaries.
pub async fn is_replica(connection: &Connection) -> Result<bool, StoreError> {
    if connection.common.is_cluster() {
        return Ok(false);
    }
    let (role, deadline) = (redis::cmd("ROLE"), connection.patience());
    match connection.ask::<Vec<Value>>(&role, false, deadline).await {
        Ok(role) => Ok(role.first() == Some(&Value::BulkString(b"slave".to_vec()))),
        Err(StoreError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}
