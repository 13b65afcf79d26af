//! The store that a fleet shares: the script of `lua/` in one Redis, or in the primary that sentinels name.
//!
//! | file | for |
//! |---|---|
//! | `node.rs` | a Redis: its connections, and the one that a call uses |
//! | `supervise.rs` | the owner of a connection: opens, probes and replaces it |
//! | `inspect.rs` | whether a connection still leads to the right server |
//! | `pool.rs` | which connections are usable, and since when none is |
//! | `connection.rs` | a connection in use |
//! | `open.rs`, `dial.rs`, `stream.rs`, `tls.rs` | one attempt to connect |
//! | `probe.rs` | the probe of a connection |
//! | `clock.rs`, `backoff.rs` | an estimate of a store's clock; pauses between attempts; both pure |
//! | `sentinel.rs` | the current primary |
//! | `sharding.rs` | whether a proxy in front shards |

mod backoff;
pub mod clock;
pub mod connection;
pub mod dial;
pub mod inspect;
pub mod node;
mod open;
mod pool;
pub mod probe;
pub mod sentinel;
pub mod sharding;
mod stream;
mod supervise;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use self::dial::Dialer;
use self::node::{AddressWatch, Common, Node, Recheck};
use self::sentinel::Sentinels;
use super::call::Script;
use super::health::Monitor;
use crate::policy::{Endpoint, RedisStore};

/// One Redis.
pub struct Redis {
    /// Its connections.
    pub node: Arc<Node>,
    _sentinels: Option<Sentinels>,
}

impl Common {
    /// Shared by the nodes of this store.
    pub fn new(store: &RedisStore, timeout: Duration, monitor: Arc<Monitor>) -> Self {
        Self {
            dialer: Dialer::new(store, timeout),
            script: Script::new(&store.options.key_prefix),
            connections: store.options.connections,
            monitor,
            clock_steps: Arc::default(),
        }
    }
}

/// Starts to connect to this address, in the current runtime.
pub fn open(common: &Arc<Common>, endpoint: &Endpoint) -> Redis {
    let (_, address) = watch::channel(Ok(endpoint.clone()));
    start(common, address, Recheck::new(()), None)
}

/// Starts to ask the sentinels, and to connect to the primary that they name.
pub fn open_by_sentinels(
    common: &Arc<Common>,
    store: &RedisStore,
    sentinels: &[Endpoint],
    name: &str,
) -> Redis {
    let recheck = Recheck::new(());
    let dialer = Dialer::to_sentinels(store, common.dialer.store_timeout());
    let sentinels = Sentinels::ask(dialer, sentinels.to_vec(), name, &recheck);
    start(common, sentinels.primary(), recheck, Some(sentinels))
}

fn start(
    common: &Arc<Common>,
    address: AddressWatch,
    recheck: Recheck,
    sentinels: Option<Sentinels>,
) -> Redis {
    let node = Node::start(Arc::clone(common), address, recheck, None, None);
    Redis {
        node: Arc::new(node),
        _sentinels: sentinels,
    }
}
