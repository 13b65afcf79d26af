//! The nodes of a store: those of a Redis Cluster, or one that serves all keys.
//!
//! | file | for |
//! |---|---|
//! | `lanes.rs` | which decisions share a queue; pure |
//! | `sub_batch.rs` | splits a batch by subject or key and combines the answers; pure |
//! | `layout.rs` | which node owns which slots; pure |
//! | `map.rs` | the nodes, and how they are found |
//! | `referral.rs` | which errors are redirections; pure |
//! | `routing.rs` | the node for a call, and redirections |

pub mod lanes;
pub mod layout;
pub mod map;
pub mod referral;
pub mod routing;
pub mod sub_batch;
