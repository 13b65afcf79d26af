//! The stores that keep the state, and the queue that batches calls to them. Three kinds of store have one interface:
//! each takes a batch and returns an outcome for each decision.
//!
//! | file | for |
//! |---|---|
//! | `batch/` | the queue and the worker that batch decisions into calls |
//! | `kinds.rs` | the common interface: this process, or Redis |
//! | `memory.rs` | the engine, in this process |
//! | `client.rs`, `client/` | the calls to one Redis or a Redis Cluster |
//! | `cluster/` | the nodes of a store: a Cluster's, or one that serves all keys; lanes, sub-batches, and the way to a node |
//! | `redis/` | a node: supervised connections |
//! | `slots.rs` | the slot of a key, and which keys one call may have; pure |
//! | `check.rs` | what `check-store` finds out about a store |
//! | `commands.rs` | the script's calls as Redis commands |
//! | `health.rs` | whether the store is up |
//! | `overrides.rs` | the overrides that all sidecars share |
//! | `outage.rs`, `share.rs` | what this sidecar does while the store is down |
//! | `position_reports.rs` | which share of the limits it then enforces |
//! | `settlements.rs` | divides settlements among calls, and repeats calls |
//! | `reply.rs`, `error.rs` | a store's answer, and its errors |

pub mod batch;
mod check;
mod client;
mod cluster;
mod commands;
mod error;
mod health;
mod kinds;
mod memory;
mod outage;
mod overrides;
mod position_reports;
mod redis;
mod reply;
mod settlements;
mod share;
#[cfg(feature = "simulation")]
#[path = "../tests/simulated.rs"]
pub mod simulated;
mod slots;
#[cfg(test)]
mod tests;

/// What reads the answers of Redis, for the fuzzer: everything else calls it through a store.
#[doc(hidden)]
pub mod answers {
    pub use super::cluster::layout::{Layout, Owner};
    pub use super::cluster::referral::Referral;
    pub use super::overrides::{read_hash, version};
    pub use super::redis::sentinel::primary_of;
    pub use super::slots::{SLOTS, slot};
}

pub use check::{Finding, Found, check};
pub use error::{ConnectionError, StoreError};
pub use health::{Health, HealthState};
pub use kinds::Store;
pub use outage::{NoShare, Outage};
pub use overrides::{Entries, Name, StoredOverrides};
