//! Where the state is kept, and who shares a call to it. One seam, three stores: each takes a batch and answers an
//! outcome for each decision.
//!
//! | file | for |
//! |---|---|
//! | `batch/` | the queue and the worker that share calls |
//! | `kinds.rs` | the seam: this process, one Redis, a Redis Cluster |
//! | `memory.rs` | the engine, in this process |
//! | `redis.rs` | one Redis |
//! | `cluster/` | a Redis Cluster: slots, parts, lanes, and its client |
//! | `call.rs` | the script, called |
//! | `portion.rs` | some decisions of a batch |
//! | `returns.rs` | give-backs, put together into few calls |
//! | `settled.rs`, `error.rs` | what a store answers, and why it does not |

pub mod batch;
mod call;
mod cluster;
mod error;
mod kinds;
mod memory;
mod portion;
mod redis;
mod returns;
mod settled;
#[cfg(test)]
mod test_batches;

pub use error::StoreError;
pub use kinds::Store;
pub use returns::GiveBackEntry;
pub use settled::{Settled, Settlement};
