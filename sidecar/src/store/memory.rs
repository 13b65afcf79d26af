//! The embedded store: the engine behind a lock. Its time is the wall clock, so that its windows begin where Redis's would,
//! also after the clock was corrected: the engine repairs its state after a step back.

use std::sync::Mutex;
use std::time::Instant;

use sluicegate_engine::{Batch, Done, Memory as Engine, Settlements};

use super::commands::AnnounceResult;
use super::error::StoreError;
use super::overrides::StoredOverrides;
use super::redis::clock::Clock;
use super::reply::StoreReply;
use crate::clock;
use crate::lock::lock;

/// Entries examined while decisions wait: less than a millisecond's work.
const SWEEP_AT_ONCE: usize = 500;

/// State in this process.
#[derive(Debug)]
pub struct Memory {
    engine: Mutex<Engine>,
    /// Its estimate of the wall clock, and how often that has stepped.
    clock: Mutex<(Clock, u64)>,
    /// Gone with this process, as the counts are.
    overrides: Mutex<StoredOverrides>,
}

impl Memory {
    /// Bounds the memory to about this many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            engine: Mutex::new(Engine::with_limit(limit_bytes)),
            clock: Mutex::new((Clock::new(Instant::now()), 0)),
            overrides: Mutex::default(),
        }
    }

    pub fn decide_at_once(&self, batch: &Batch) -> StoreReply {
        StoreReply::each(lock(&self.engine).decide(clock::unix_us(), batch))
    }

    pub async fn decide(&self, batch: &Batch) -> StoreReply {
        self.decide_at_once(batch)
    }

    pub async fn settle(&self, settlements: &Settlements) -> Result<Vec<Done>, StoreError> {
        Ok(lock(&self.engine).settle(clock::unix_us(), settlements))
    }

    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let mut engine = lock(&self.engine);
        Ok(keys.iter().map(|key| engine.reset(key)).collect())
    }

    pub async fn renew(&self, holds: &[(String, u64)]) -> Result<Vec<bool>, StoreError> {
        let (mut engine, now_us) = (lock(&self.engine), clock::unix_us());
        let renew = |(hold, for_ms): &(String, u64)| engine.renew(now_us, hold, for_ms * 1_000);
        Ok(holds.iter().map(renew).collect())
    }

    pub const fn is_down(&self, _: &str) -> bool {
        false
    }

    pub fn clock_us(&self, _: &str) -> Option<u64> {
        Some(clock::unix_us())
    }

    pub async fn announce(&self, _: &str) -> AnnounceResult {
        Ok((None, self.overrides_version().await))
    }

    pub async fn leave(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    pub async fn overrides_version(&self) -> Result<u64, StoreError> {
        Ok(lock(&self.overrides).version)
    }

    pub async fn overrides(&self) -> Result<StoredOverrides, StoreError> {
        Ok(lock(&self.overrides).clone())
    }

    pub async fn change_overrides(
        &self,
        read: &StoredOverrides,
        next: &StoredOverrides,
    ) -> Result<Option<StoredOverrides>, StoreError> {
        let now_us = clock::unix_us();
        Ok(lock(&self.overrides).replace(read, next, now_us))
    }

    /// Drops expired entries in small steps, so that decisions get their turn in between; to be called about once a second.
    pub async fn sweep(&self) {
        // Entries that expire from now on wait for the next sweep, or a flood of keys would keep this one from ending.
        let now_us = clock::unix_us();
        while !lock(&self.engine).sweep(now_us, SWEEP_AT_ONCE) {
            tokio::task::yield_now().await;
        }
    }

    /// How often the wall clock was found to have stepped. To be asked before each decision.
    pub fn clock_steps(&self) -> u64 {
        let mut known = lock(&self.clock);
        let (clock, steps) = &mut *known;
        let before = Instant::now();
        let wall_us = clock::unix_us();
        *steps += u64::from(clock.observe(wall_us, before, Instant::now()));
        *steps
    }
}
