//! The embedded store: the engine behind a lock. Its fixed windows begin where Redis's would.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{Batch, Memory as Engine, Outcome};

use crate::clock;

/// Buckets looked at by one sweep: a few milliseconds' work, while decisions wait.
const SWEEP_AT_MOST: usize = 10_000;

/// State in this process.
#[derive(Debug, Default)]
pub struct Memory {
    engine: Mutex<Engine>,
}

impl Memory {
    pub fn decide(&self, batch: &Batch) -> Vec<Outcome> {
        self.engine().decide(clock::steady_unix_us(), batch)
    }

    pub fn give_back(&self, returns: &[GiveBack<'_>]) -> Vec<u64> {
        let (mut engine, now_us) = (self.engine(), clock::steady_unix_us());
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
        self.engine().sweep(clock::steady_unix_us(), SWEEP_AT_MOST);
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // Nothing in the engine panics, so a poisoned lock still guards whole state.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
