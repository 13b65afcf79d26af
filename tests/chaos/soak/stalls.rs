//! How long the machine itself stood still: a thread that only sleeps wakes up late by so much.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SLEEP: Duration = Duration::from_millis(5);

/// Watches until it is dropped.
pub struct Stalls {
    longest_us: Arc<AtomicU64>,
}

impl Stalls {
    pub fn watch() -> Self {
        let longest_us = Arc::new(AtomicU64::new(0));
        let watched = Arc::downgrade(&longest_us);
        std::thread::spawn(move || {
            loop {
                let began = Instant::now();
                std::thread::sleep(SLEEP);
                let late = began.elapsed().saturating_sub(SLEEP);
                let Some(longest_us) = watched.upgrade() else {
                    return;
                };
                longest_us.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self { longest_us }
    }

    /// The longest since the last call.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest_us.swap(0, Ordering::Relaxed))
    }
}
