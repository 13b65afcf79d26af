//! The embedded store: the engine behind a lock, with a clock of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{Batch, Full, Memory as Engine, Outcome};

/// Entries looked at while decisions wait: less than a millisecond's work.
const SWEEP_AT_ONCE: usize = 500;

/// State in this process.
#[derive(Debug)]
pub struct Memory {
    engine: Mutex<Engine>,
    // The wall's time at the start, so that fixed windows begin where Redis's would ...
    started_us: u64,
    // ... and from then on a clock that does not step.
    started: Instant,
}

impl Memory {
    /// Holds about this many bytes at most.
    pub fn new(limit_bytes: usize) -> Self {
        let since_epoch = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            engine: Mutex::new(Engine::with_limit(limit_bytes)),
            started_us: u64::try_from(since_epoch.as_micros()).unwrap_or(0),
            started: Instant::now(),
        }
    }

    pub fn decide(&self, batch: &Batch) -> Vec<Result<Outcome, Full>> {
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

    /// Drops what has expired, a little at a time, so that decisions get their turn in between; to be called every second
    /// or so.
    pub async fn sweep(&self) {
        // What expires from now on is for the next time, or a flood of keys would keep this one from ending.
        let now_us = self.now_us();
        while !self.sweep_at_once(now_us) {
            tokio::task::yield_now().await;
        }
    }

    /// Whether all has been done.
    fn sweep_at_once(&self, now_us: u64) -> bool {
        self.engine().sweep(now_us, SWEEP_AT_ONCE).done
    }

    fn now_us(&self) -> u64 {
        self.started_us + u64::try_from(self.started.elapsed().as_micros()).unwrap_or(0)
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // Nothing in the engine panics, so a poisoned lock still guards whole state.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
