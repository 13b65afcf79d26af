//! Leases: units that a sidecar takes in advance and spends without asking the store. Pure.
//!
//! | file | for |
//! |---|---|
//! | `lease/rate.rs` | how many units a key is asked for, per second |
//! | `lease/terms.rs` | how many units a lease is for, until when, and why there is none |
//! | `lease/pool.rs` | the leases of one key: spent, renewed, put back, ended |
//!
//! A `sliding_window` stamps units with the end of the step in which they are taken, and a `fixed_window` counts them until
//! its end. So units that are taken now may be spent until then, and no window ever holds more than its quota. A `token_bucket`
//! drains while units are held, and so has a smaller burst.
//! docs/leases.md has the bounds, docs/decisions/leases.md what else was tried.

mod pool;
mod rate;
mod terms;

pub use pool::{EndedLease, Pool};
pub use rate::Rate;
pub use sluicegate_certificates::{Grant, Taken};
pub use terms::{LeaseRefusal, LeaseTerms, SMALLEST_RENEWAL, less_drift, reserve, spend_by_us};
