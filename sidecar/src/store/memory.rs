//! The embedded store: the engine behind a lock, with a clock of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{Batch, Memory as Engine, Outcome};

/// Buckets looked at by one sweep: a few milliseconds' work, while decisions wait.
const SWEEP_AT_MOST: usize = 10_000;

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
    pub fn decide(&self, batch: &Batch) -> Vec<Outcome> {
        self.engine().decide(self.now_us(), batch)
    }

    pub fn give_back(&self, returns: &[GiveBack<'_>]) -> Vec<u64> {
        let (mut engine, now_us) = (self.engine(), self.now_us());
        returns
            .iter()
            .map(|give| engine.give_back(now_us, give.bucket, give.cost, give.at_us))
            .collect()
    }

    pub fn reset(&self, keys: &[String]) -> Vec<bool> {
        let mut engine = self.engine();
        keys.iter().map(|key| engine.reset(key)).collect()
    }

    /// Drops what has expired; to be called every second or so.
    pub fn sweep(&self) {
        self.engine().sweep(self.now_us(), SWEEP_AT_MOST);
    }

    fn now_us(&self) -> u64 {
        self.started_us + u64::try_from(self.started.elapsed().as_micros()).unwrap_or(0)
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // Nothing in the engine panics, so a poisoned lock still guards whole state.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
