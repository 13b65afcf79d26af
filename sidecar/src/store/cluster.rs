//! A Redis Cluster.
//!
//! | file | for |
//! |---|---|
//! | `slots.rs` | the slot of a key |
//! | `lanes.rs` | which decisions share a queue; pure |
//! | `sub_batch.rs` | splits a batch by slot and combines the answers; pure |
//! | `map.rs` | the slot map and its refresh |
//! | `client.rs` | the calls, and redirections |

pub mod client;
pub mod lanes;
mod map;
pub mod slots;
mod sub_batch;
