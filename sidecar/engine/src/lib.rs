//! What every store is asked and answers, and the store that needs no Redis.
//!
//! | file | for |
//! |---|---|
//! | `batch.rs` | the question: buckets, decisions over them; the answer: outcomes |
//! | `builder.rs` | a batch put together, each bucket once |
//! | `check.rs` | which numbers a bucket may have, and what to do about those it may not |
//! | `key.rs` | the one spelling of a bucket's key |
//! | `memory.rs` | the embedded store; under `memory/`, an algorithm a file |
//! | `receipt.rs` | what proves that units were taken |
//! | `script.rs`, `script/reply.rs` | what goes to the Lua script, and what comes back |
//! | `share.rs` | a limit divided among sidecars that cannot ask the store |
//! | `size.rs` | what a bucket takes in Redis |
//! | `verdict.rs` | from what each bucket of a decision says to its outcome |
//!
//! Nothing here reads a clock, opens a socket or knows tokio: time comes in as an argument.

mod batch;
mod builder;
mod check;
mod key;
mod memory;
mod receipt;
pub mod script;
mod share;
mod size;
mod verdict;

pub use batch::{
    Algorithm, Batch, Bucket, BucketSpec, Decision, MAX_CALL_WEIGHT, MAX_RECORDS,
    MAX_REQUEST_WEIGHT, Outcome, Receipt, Record, Take,
};
pub use builder::BatchBuilder;
pub use check::{
    MAX_HELD, MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US, SpecError, TokenRate,
    greatest_common_divisor,
};
pub use key::{bucket_key, receipt_key};
pub use memory::{Full, Memory, Swept};
pub use receipt::{Return, Returns};
pub use share::Place;
