//! What all connections of a store have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::dial::Dialer;
use crate::policy::{RedisStore, Topology};
use crate::store::commands::Script;
use crate::store::error::StoreError;
use crate::store::health::Monitor;
use crate::store::slots::Atomic;

/// What all nodes of a store share.
pub struct Common {
    /// How to connect.
    pub dialer: Dialer,
    /// The script to call.
    pub script: Script,
    /// Connections per node.
    pub connections: usize,
    /// Which keys one call may have.
    pub atomic: Atomic,
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
            atomic: match store.url.topology {
                Topology::Cluster(_) => Atomic::Slot,
                _ => Atomic::Store,
            },
            monitor,
            clock_steps: AtomicU64::new(0),
        }
    }

    /// Whether the nodes are those of a Cluster, which refer to each other.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.atomic, Atomic::Slot)
    }

    /// Whether an error says that a slot has moved or is on its way. In a Cluster, that is no fault of the node.
    pub fn is_elsewhere(&self, error: &StoreError) -> bool {
        self.is_cluster() && error.is_elsewhere()
    }
}
