//! Where the state is kept, and who shares a call to it. One seam, three stores: each takes a batch and answers an
//! outcome for each decision.
//!
//! | file | for |
//! |---|---|
//! | `batch/` | the queue and the worker that share calls |
//! | `kinds.rs` | the seam: this process, one Redis, a Redis Cluster |
//! | `memory.rs` | the engine, in this process |
//! | `redis/` | one Redis, or the primary that sentinels name: watched connections |
//! | `cluster/` | a Redis Cluster: slots, parts, lanes, and its client |
//! | `call.rs` | the script as commands |
//! | `health.rs` | whether it can be used |
//! | `outage.rs`, `share.rs` | what this sidecar does while the store is down |
//! | `portion.rs` | some decisions of a batch |
//! | `returns.rs` | give-backs, put together into few calls |
//! | `settled.rs`, `error.rs` | what a store answers, and why it does not |

pub mod batch;
mod call;
mod cluster;
mod error;
mod health;
mod kinds;
mod memory;
mod outage;
mod portion;
mod redis;
mod returns;
mod settled;
mod share;
#[cfg(test)]
mod test_batches;

pub use error::{ConnectionError, StoreError};
pub use health::{Health, HealthState};
pub use kinds::Store;
pub use outage::{NoShare, Outage};
pub use returns::GiveBackEntry;
pub use settled::{Settled, Settlement};
