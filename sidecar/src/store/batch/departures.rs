//! When calls begin: what is sent with one wakes neither the store nor this process once more.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::clock;

/// Tells one task.
#[derive(Default)]
pub struct Departures {
    from_us: AtomicU64,
    begins: Notify,
}

impl Departures {
    /// Waits until a call begins, at this time at the earliest.
    pub async fn next(&self, from_us: u64) {
        self.from_us.store(from_us, Ordering::Relaxed);
        self.begins.notified().await;
    }

    /// A call begins.
    pub fn depart(&self) {
        if clock::now_us() >= self.from_us.load(Ordering::Relaxed) {
            self.begins.notify_waiters();
        }
    }
}
