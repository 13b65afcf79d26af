//! The embedded store: the engine behind a lock. Its fixed windows begin where Redis's would.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_engine::{Batch, Full, Memory as Engine, Outcome, Returns};

use super::overrides::StoredOverrides;
use crate::clock;

/// Entries examined while decisions wait: less than a millisecond's work.
const SWEEP_AT_ONCE: usize = 500;

/// State in this process.
#[derive(Debug, Default)]
pub struct Memory {
    engine: Mutex<Engine>,
    overrides: Mutex<StoredOverrides>,
}

impl Memory {
    /// Bounds the memory to about this many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            engine: Mutex::new(Engine::with_limit(limit_bytes)),
            overrides: Mutex::default(),
        }
    }

    pub fn decide(&self, batch: &Batch) -> Vec<Result<Outcome, Full>> {
        self.engine().decide(clock::steady_unix_us(), batch)
    }

    pub fn return_units(&self, returns: &Returns) -> Vec<u64> {
        self.engine().return_units(clock::steady_unix_us(), returns)
    }

    pub fn reset(&self, keys: &[String]) -> Vec<bool> {
        let mut engine = self.engine();
        keys.iter().map(|key| engine.reset(key)).collect()
    }

    /// Drops expired entries in small steps, so that decisions get their turn in between; to be called about once a second.
    pub async fn sweep(&self) {
        // Entries that expire from now on wait for the next sweep, or a flood of keys would keep this one from ending.
        let now_us = clock::steady_unix_us();
        while !self.sweep_at_once(now_us) {
            tokio::task::yield_now().await;
        }
    }

    /// One step; whether it was the last.
    fn sweep_at_once(&self, now_us: u64) -> bool {
        self.engine().sweep(now_us, SWEEP_AT_ONCE).done
    }

    /// Gone with this process, as the counts are.
    pub fn overrides(&self) -> MutexGuard<'_, StoredOverrides> {
        self.overrides
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // Nothing in the engine panics, so a poisoned lock still guards consistent state.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
