//! What all connections of a store have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::dial::Dialer;
use crate::policy::RedisStore;
use crate::store::commands::Script;
use crate::store::health::Monitor;

/// What all nodes of a store share.
pub struct Common {
    /// How to connect.
    pub dialer: Dialer,
    /// The script to call.
    pub script: Script,
    /// Connections per node.
    pub connections: usize,
    /// Where health is reported.
    pub monitor: Arc<Monitor>,
    /// Counts how often the clock of a node was found to have stepped.
    pub clock_steps: AtomicU64,
}

impl Common {
    /// For the nodes of this store.
    pub fn new(store: &RedisStore, timeout: Duration, monitor: Arc<Monitor>) -> Self {
        Self {
            dialer: Dialer::new(store, timeout),
            script: Script::new(&store.options.key_prefix),
            connections: store.options.connections,
            monitor,
            clock_steps: AtomicU64::new(0),
        }
    }
}
