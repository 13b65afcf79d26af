//! A Redis Cluster.
//!
//! | file | for |
//! |---|---|
//! | `slots.rs` | the slot of a key |
//! | `lanes.rs` | who waits with whom; pure |
//! | `parts.rs` | a batch into parts, one for each subject, and their answers together again; pure |
//! | `map.rs` | which node has which slots |
//! | `client.rs` | the calls, and whom a node refers them to |

pub mod client;
pub mod lanes;
mod map;
mod parts;
pub mod slots;
