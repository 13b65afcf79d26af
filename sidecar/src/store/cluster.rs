//! A Redis Cluster.
//!
//! | file | for |
//! |---|---|
//! | `slots.rs` | the slot of a key |
//! | `lanes.rs` | which decisions share a queue; pure |
//! | `sub_batch.rs` | splits a batch by subject or key and combines the answers; pure |
//! | `layout.rs` | what a node answers to CLUSTER SLOTS; pure |
//! | `map.rs` | the slot map and its refresh |
//! | `referral.rs` | which errors are redirections; pure |
//! | `client.rs` | the calls, and redirections |

pub mod client;
pub mod lanes;
pub mod layout;
mod map;
pub mod referral;
pub mod slots;
mod sub_batch;
