//! Whether the store can be used, in one place. Whoever connects, looks and calls reports here; the rest reads.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::error::StoreError;

/// Whether the whole store can be used, and since when it is so.
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
    /// Nothing yet: it is being connected to for the first time.
    Unknown,
    /// All of it answers, and writes.
    Up,
    /// Not all of it does; the last reason.
    Down(StoreError),
}

impl Health {
    /// All of the store is known to be usable.
    pub const fn is_up(&self) -> bool {
        matches!(self.state, HealthState::Up)
    }

    /// Why it is not, as far as is known.
    pub const fn cause(&self) -> Option<&StoreError> {
        match &self.state {
            HealthState::Down(cause) => Some(cause),
            HealthState::Unknown | HealthState::Up => None,
        }
    }
}

/// A part of the store that may be away by itself: a node, or the knowledge of where the nodes are.
pub type PartId = u64;

/// Where the parts report.
#[derive(Debug)]
pub struct Monitor {
    parts: Mutex<Parts>,
    health: watch::Sender<Health>,
}

#[derive(Debug, Default)]
struct Parts {
    next: PartId,
    /// Those of which nothing is known yet, or that are down.
    lacking: BTreeMap<PartId, Option<StoreError>>,
}

impl Default for Monitor {
    fn default() -> Self {
        let unknown = Health {
            state: HealthState::Unknown,
            since: Instant::now(),
        };
        Self {
            parts: Mutex::default(),
            health: watch::Sender::new(unknown),
        }
    }
}

impl Monitor {
    /// A part that is new: nothing is known of it.
    pub fn add(&self) -> PartId {
        self.change(|parts| {
            parts.next += 1;
            parts.lacking.insert(parts.next, None);
            parts.next
        })
    }

    /// A part is no part any more.
    pub fn remove(&self, part: PartId) {
        self.up(part);
    }

    /// A part can be used.
    pub fn up(&self, part: PartId) {
        self.change(|parts| parts.lacking.remove(&part));
    }

    /// A part cannot be used.
    pub fn down(&self, part: PartId, cause: StoreError) {
        self.change(|parts| {
            parts.lacking.insert(part, Some(cause));
        });
    }

    /// As it is.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Tells of changes.
    pub fn watch(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Parts) -> T) -> T {
        // Nothing that is done under it panics.
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = change(&mut parts);
        let state = match parts.lacking.values().flatten().next() {
            Some(cause) => HealthState::Down(cause.clone()),
            None if parts.lacking.is_empty() => HealthState::Up,
            None => HealthState::Unknown,
        };
        self.health.send_if_modified(|health| {
            let same = std::mem::discriminant(&health.state) == std::mem::discriminant(&state);
            let told = health.cause().map(StoreError::kind);
            health.state = state;
            if !same {
                health.since = Instant::now();
            }
            !same || told != health.cause().map(StoreError::kind)
        });
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::ConnectionError;

    #[test]
    fn a_store_is_up_when_all_its_parts_are() {
        let monitor = Monitor::default();
        let (a, b) = (monitor.add(), monitor.add());
        monitor.up(a);
        assert!(matches!(monitor.health().state, HealthState::Unknown));
        monitor.up(b);
        let health = monitor.health();
        assert!(health.is_up());
        let changes = monitor.watch();
        monitor.up(a);
        assert!(!changes.has_changed().unwrap());
        monitor.down(b, ConnectionError::Closed.into());
        assert!(changes.has_changed().unwrap());
        let down = monitor.health();
        assert_eq!(
            down.cause().map(StoreError::kind),
            Some(crate::telemetry::labels::FailureKind::Connection)
        );
        assert!(down.since >= health.since);
        monitor.remove(b);
        assert!(monitor.health().is_up());
    }
}
