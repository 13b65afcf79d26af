//! The embedded store: the engine behind a lock, with a clock of its own.

use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use sluicegate_engine::{Batch, Memory as Engine, Outcome};

/// State in this process.
#[derive(Debug)]
pub struct Memory {
    engine: Mutex<Engine>,
    // The wall's time at the start, so that fixed windows begin where Redis's would ...
    started_us: u64,
    // ... and from then on a clock that does not step.
    started: Instant,
}

impl Default for Memory {
    fn default() -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            engine: Mutex::default(),
            started_us: u64::try_from(since_epoch.as_micros()).unwrap_or(0),
            started: Instant::now(),
        }
    }
}

impl Memory {
    pub(super) fn decide(&self, batch: &Batch) -> Vec<Outcome> {
        let now_us =
            self.started_us + u64::try_from(self.started.elapsed().as_micros()).unwrap_or(0);
        // Nothing in the engine panics, so a poisoned lock still guards whole state.
        self.engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .decide(now_us, batch)
    }
}
