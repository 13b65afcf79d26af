//! A Redis Cluster.
//!
//! | file | for |
//! |---|---|
//! | `slots.rs` | the slot of a key |
//! | `lanes.rs` | who waits with whom; pure |
//! | `parts.rs` | a batch into parts, one for each subject, and their answers together again; pure |
//! | `client.rs` | the calls |

pub mod client;
pub mod lanes;
mod parts;
pub mod slots;
