//! Tells of store calls that failed: in the log, as few lines with a count.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use super::labels::FailureKind;
use super::repeats::Repeats;
use crate::clock;

/// Shared by whoever calls the store.
#[derive(Debug, Default)]
pub struct FailureLog {
    repeats: Mutex<Repeats>,
    /// Something failed and is not told to be over: else a call that succeeds need not lock.
    open: AtomicBool,
}

impl FailureLog {
    /// A call has failed. `why` goes to the log: it must hold no key and no secret.
    pub fn failed(&self, kind: FailureKind, why: impl Display) {
        let told = {
            let mut repeats = self.repeats();
            self.open.store(true, Ordering::Relaxed);
            repeats.failed(clock::now_us(), kind)
        };
        match told {
            None => {}
            Some(0) => warn!(%kind, "store call failed: {why}"),
            Some(repeated) => warn!(%kind, repeated, "store call failed: {why}"),
        }
    }

    /// A call has succeeded.
    pub fn succeeded(&self) {
        if !self.open.load(Ordering::Relaxed) {
            return;
        }
        let over = {
            let mut repeats = self.repeats();
            let over = repeats.succeeded(clock::now_us());
            self.open.store(!repeats.is_calm(), Ordering::Relaxed);
            over
        };
        if let Some(over) = over {
            let seconds = over.after_us as f64 / 1_000_000.0;
            let failed = over.failed;
            info!("the store is back after {seconds:.1} s, {failed} failed calls");
        }
    }

    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        // Nothing that is done under it panics.
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
