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
//! | `routing.rs` | the node for a call, and redirections |

pub mod lanes;
pub mod layout;
pub mod map;
pub mod referral;
pub mod routing;
pub mod slots;
pub mod sub_batch;
