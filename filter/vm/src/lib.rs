//! What the filter does in a VM, for any [`Host`]: in Envoy `filter/src` has the host, in `tests/world` a simulation is it.
//!
//! | file | for |
//! |---|---|
//! | `host.rs` | what the filter needs of its host |
//! | `root.rs` | one per plugin configuration: reads it, and passes on the host's events |
//! | `stream.rs` | one per request: derives the question, waits, and applies the verdict |
//! | `waiter.rs` | a request that waits for its verdict |
//! | `callouts.rs` | the queue of waiting requests, callouts in flight, wake-ups and delivery |
//! | `rule_updates.rs` | requests for the rules that the sidecar pushes, and their compilation |
//! | `settling.rs` | what requests have reserved, until the sidecar knows what they have used |
//! | `plugin.rs` | state that all requests of a configuration share: rules, cached denials, leases, counters |
//! | `wakeup.rs` | wakes a root context in the next turn of Envoy's event loop |
//!
//! All decisions are made in `filter/rules`, which does not know hosts.

mod callouts;
mod host;
mod plugin;
mod root;
mod rule_updates;
mod settling;
mod stream;
mod waiter;
mod wakeup;

pub use host::{Action, Host, Level};
pub use root::Root;
pub use stream::Stream;
