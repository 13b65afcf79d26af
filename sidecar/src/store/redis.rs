//! A Redis that runs the script of `lua/`, and the connections to it.
//!
//! | file | for |
//! |---|---|
//! | `node.rs` | a Redis: its connections, and the one that a call uses |
//! | `supervise.rs` | the owner of a connection: opens, probes and replaces it |
//! | `server.rs` | what INFO tells of a server; pure |
//! | `pool.rs` | which connections are usable, and since when none is |
//! | `connection.rs`, `common.rs` | a connection in use; what all of them share |
//! | `open.rs`, `dial.rs`, `stream.rs`, `tls.rs` | one attempt to connect |
//! | `probe.rs` | the probe of a connection |
//! | `clock.rs`, `backoff.rs` | an estimate of a store's clock; pauses between attempts; both pure |
//! | `sentinel.rs` | the current primary |
//! | `sharding.rs` | whether a proxy in front shards |

mod backoff;
pub mod clock;
pub mod common;
pub mod connection;
pub mod dial;
pub mod node;
mod open;
pub mod pool;
pub mod probe;
pub mod sentinel;
pub mod server;
pub mod sharding;
mod stream;
mod supervise;
mod tls;
