//! The interface of every store, and the embedded store, which needs no Redis.
//!
//! | file | for |
//! |---|---|
//! | `algorithm.rs`, `algorithm/` | what is known of each algorithm: a file for each |
//! | `batch.rs` | a store's input: buckets, and decisions over them |
//! | `builder.rs` | builds a batch, with each bucket once |
//! | `calendar.rs` | days, weeks and months of a time zone, as instants |
//! | `check.rs` | the bounds on a bucket's numbers, and errors with a remedy |
//! | `hold.rs` | holds, which takes leave, and settlements, which spend them |
//! | `key.rs` | the format of a bucket's key |
//! | `lease.rs`, `lease/` | leases: units that are taken in advance |
//! | `memory.rs` | the embedded store |
//! | `script.rs`, `script/reply.rs` | encodes calls of the Lua script and decodes its replies |
//! | `share.rs` | divides a limit among sidecars that cannot reach the store |
//! | `slot_id.rs` | the names of slots |
//! | `verdict.rs` | the outcome of a decision, of the answers of its buckets |
//!
//! Nothing here reads a clock, opens a socket or depends on tokio: the time is an argument.

// An algorithm that is added must not be answered for by an arm that was written before it.
#![deny(clippy::wildcard_enum_match_arm)]

mod algorithm;
mod batch;
mod builder;
mod calendar;
mod check;
mod hold;
mod key;
pub mod lease;
mod memory;
pub mod script;
mod share;
mod slot_id;
#[cfg(test)]
mod test;
mod verdict;

pub use algorithm::{Algorithm, BucketSpec, MAX_RECORDS, Record, TokenRate};
pub use batch::{Batch, Decision, MAX_CALL_WEIGHT, MAX_REQUEST_WEIGHT, Take};
pub use builder::BatchBuilder;
pub use calendar::{Calendar, CalendarUnit, DEFAULT_TIME_ZONE, UnknownTimeZone};
pub use check::{
    MAX_HELD, MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US, SpecError, greatest_common_divisor,
};
pub use hold::{ALL, Done, Entry, Guard, Held, Hold, Settlement, Settlements, TakenSlots};
pub use key::{Bucket, bucket_key, hold_key, hold_key_beside};
pub use memory::{Full, Memory};
pub use share::FleetPosition;
pub use slot_id::{MAX_SLOTS, SlotId};
pub use verdict::{Look, Outcome, outcome};
