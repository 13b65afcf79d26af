//! When the machine itself stood still: threads that only sleep wake up late by so much. One for each of its processors, since
//! a virtual one may stand still alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const SLEEP: Duration = Duration::from_millis(5);
/// Half of the policy's `store_timeout`: a call to Redis may then be given up although nothing is wrong but the machine.
pub const STOOD_STILL: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Shared {
    longest_us: AtomicU64,
    long: Mutex<Vec<(Instant, Instant)>>,
}

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    shared: Arc<Shared>,
}

impl Stalls {
    pub fn watch() -> Self {
        let shared = Arc::new(Shared::default());
        let processors = sched_getaffinity(None).expect("the processors of this process");
        for processor in (0..CpuSet::MAX_CPU).filter(|one| processors.is_set(*one)) {
            let watched = Arc::downgrade(&shared);
            std::thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(processor);
                sched_setaffinity(None, &only).expect("a thread on a processor of its own");
                loop {
                    let began = Instant::now();
                    std::thread::sleep(SLEEP);
                    let late = began.elapsed().saturating_sub(SLEEP);
                    let Some(shared) = watched.upgrade() else {
                        return;
                    };
                    let late_us = late.as_micros() as u64;
                    shared.longest_us.fetch_max(late_us, Ordering::Relaxed);
                    if late >= STOOD_STILL {
                        let mut long = shared.long.lock().unwrap_or_else(PoisonError::into_inner);
                        long.push((began, Instant::now()));
                    }
                }
            });
        }
        Self { shared }
    }

    /// The longest since the last call.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.shared.longest_us.swap(0, Ordering::Relaxed))
    }

    /// When it stood still for [`STOOD_STILL`] or longer: from, to.
    pub fn long(&self) -> Vec<(Instant, Instant)> {
        let long = &self.shared.long;
        long.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
