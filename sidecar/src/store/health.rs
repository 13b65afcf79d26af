//! Whether the store is up, in one place. Connections and probes report here; everything else reads.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::watch;

use super::error::StoreError;
use crate::lock::lock;
use crate::telemetry::metrics::StoreFacts;

/// Whether the whole store is up, and since when.
#[derive(Clone, Debug)]
pub struct Health {
    /// What is known.
    pub state: HealthState,
    /// When this state began.
    pub since: Instant,
}

/// What is known of a store.
#[derive(Clone, Debug)]
pub enum HealthState {
    /// Nothing yet: the first connection is being made.
    Unknown,
    /// All components answer and accept writes.
    Up,
    /// Some component does not; the last reason.
    Down(StoreError),
}

impl Default for Health {
    fn default() -> Self {
        Self {
            state: HealthState::Unknown,
            since: Instant::now(),
        }
    }
}

impl Health {
    /// Whether all components are known to be usable.
    pub const fn is_up(&self) -> bool {
        matches!(self.state, HealthState::Up)
    }

    /// Why the store is down, if it is.
    pub const fn cause(&self) -> Option<&StoreError> {
        match &self.state {
            HealthState::Down(cause) => Some(cause),
            HealthState::Unknown | HealthState::Up => None,
        }
    }
}

/// A component of the store that may fail by itself: a node, or the slot map.
pub type ComponentId = u64;

/// Collects the health of the components.
#[derive(Debug, Default)]
pub struct Monitor {
    components: Mutex<Components>,
    health: watch::Sender<Health>,
    facts: Mutex<StoreFacts>,
}

#[derive(Debug, Default)]
struct Components {
    next: ComponentId,
    /// Components that are down, with the reason, or whose state is not known yet.
    unusable: BTreeMap<ComponentId, Option<StoreError>>,
}

impl Monitor {
    /// Facts about the store besides its health, to read and to change.
    pub fn facts(&self) -> MutexGuard<'_, StoreFacts> {
        lock(&self.facts)
    }

    /// Registers a component of which nothing is known yet.
    pub fn add(&self) -> ComponentId {
        self.change(|components| {
            components.next += 1;
            components.unusable.insert(components.next, None);
            components.next
        })
    }

    /// Reports a component as usable, or as gone.
    pub fn up(&self, component: ComponentId) {
        self.change(|components| components.unusable.remove(&component));
    }

    /// Reports a component as unusable.
    pub fn down(&self, component: ComponentId, cause: StoreError) {
        self.change(|components| {
            components.unusable.insert(component, Some(cause));
        });
    }

    /// Notifies of changes.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Components) -> T) -> T {
        let mut components = lock(&self.components);
        let answer = change(&mut components);
        let state = match components.unusable.values().flatten().next() {
            Some(cause) => HealthState::Down(cause.clone()),
            None if components.unusable.is_empty() => HealthState::Up,
            None => HealthState::Unknown,
        };
        self.health.send_if_modified(|health| {
            let same = std::mem::discriminant(&health.state) == std::mem::discriminant(&state);
            let kind_before = health.cause().map(StoreError::kind);
            health.state = state;
            if !same {
                health.since = Instant::now();
            }
            !same || kind_before != health.cause().map(StoreError::kind)
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::ConnectionError;
    use crate::telemetry::labels::FailureKind;

    #[test]
    fn a_store_is_up_when_all_its_components_are() {
        let monitor = Monitor::default();
        let health = || monitor.watch().borrow().clone();
        let (a, b) = (monitor.add(), monitor.add());
        monitor.up(a);
        assert!(matches!(health().state, HealthState::Unknown));
        monitor.up(b);
        let up = health();
        assert!(up.is_up());
        let changes = monitor.watch();
        monitor.up(a);
        assert!(!changes.has_changed().unwrap());
        monitor.down(b, ConnectionError::Closed.into());
        assert!(changes.has_changed().unwrap());
        let down = health();
        let kind = down.cause().map(StoreError::kind);
        assert_eq!(kind, Some(FailureKind::Connection));
        assert!(down.since >= up.since);
        monitor.up(b);
        assert!(health().is_up());
    }
}
