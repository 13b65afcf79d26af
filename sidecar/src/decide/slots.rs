//! Slots: how long they are in use, and who waits for one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::holds::Holds;
use crate::lock::lock;

/// For how long a denial by slots may be cached at most: one may be freed at any moment.
pub const MOST_HOLD_MS: u64 = 20;
/// Bounds of the estimate of when one will be free, in milliseconds.
const RETRY_MS: (u64, u64) = (1_000, 30_000);
/// The weight of the last holding time in the mean.
const WEIGHT: f64 = 0.05;

/// A limit and a key.
type Subject = (String, String);

/// What this sidecar knows of slots.
#[derive(Debug, Default)]
pub struct Slots {
    /// Those who wait for a slot of a limit and key: how many, and what wakes one of them.
    waiting: Mutex<HashMap<Subject, (usize, Arc<Notify>)>>,
    /// How long slots of a limit are in use, in microseconds.
    means_us: Mutex<HashMap<String, f64>>,
    /// Those in use.
    pub holds: Mutex<Holds>,
}

/// Waits for slots of a limit and key, from its creation on.
#[derive(Debug)]
pub struct Waits<'s> {
    slots: &'s Slots,
    subject: Subject,
    freed: Arc<Notify>,
}

impl Slots {
    /// From now on, waits for a slot that is freed.
    pub fn wait(&self, limit: &str, key: &str) -> Waits<'_> {
        let subject = (limit.to_owned(), key.to_owned());
        let mut waiting = lock(&self.waiting);
        let (count, freed) = waiting.entry(subject.clone()).or_default();
        *count += 1;
        let freed = Arc::clone(freed);
        Waits {
            slots: self,
            subject,
            freed,
        }
    }

    /// So many slots have been freed, which were in use for so long.
    pub fn freed(&self, limit: &str, key: &str, units: u64, for_us: u64) {
        let waiting = lock(&self.waiting);
        if let Some((_, freed)) = waiting.get(&(limit.to_owned(), key.to_owned())) {
            (0..units).for_each(|_| freed.notify_one());
        }
        drop(waiting);
        let mut means = lock(&self.means_us);
        let for_us = for_us as f64;
        match means.get_mut(limit) {
            Some(mean) => *mean += WEIGHT * (for_us - *mean),
            None => drop(means.insert(limit.to_owned(), for_us)),
        }
    }

    /// When one of so many will be free, in milliseconds: an estimate.
    pub fn retry_ms(&self, limit: &str, quota: u64) -> u64 {
        let (least, most) = RETRY_MS;
        let means = lock(&self.means_us);
        let mean_us = means.get(limit).copied().unwrap_or_default();
        let retry_ms = mean_us / 1_000.0 / quota.max(1) as f64;
        (retry_ms as u64).clamp(least, most)
    }
}

impl Waits<'_> {
    /// Until one is freed; false if none is until the deadline.
    pub async fn freed(&self, deadline: Instant) -> bool {
        timeout_at(deadline, self.freed.notified()).await.is_ok()
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.slots.waiting);
        if let Some((count, freed)) = waiting.get_mut(&self.subject) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.subject);
            } else {
                // It may have been woken and have given up: then the next one is.
                freed.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_slot_that_is_freed_wakes_one_of_those_who_wait_for_it() {
        let slots = Slots::default();
        let (one, other) = (slots.wait("l", "k"), slots.wait("l", "other"));
        slots.freed("l", "k", 1, 5_000);
        let soon = || Instant::now() + Duration::from_millis(10);
        assert!(one.freed(soon()).await, "freed before it was awaited");
        assert!(!one.freed(soon()).await, "once");
        assert!(!other.freed(soon()).await);
        drop((one, other));
        assert!(lock(&slots.waiting).is_empty());
    }

    #[test]
    fn the_estimate_is_the_mean_time_over_the_number_of_slots_within_bounds() {
        let slots = Slots::default();
        assert_eq!(slots.retry_ms("l", 4), 1_000, "nothing is known");
        slots.freed("l", "k", 1, 40_000_000);
        assert_eq!(slots.retry_ms("l", 4), 10_000);
        assert_eq!(slots.retry_ms("l", 1), 30_000);
        assert_eq!(slots.retry_ms("l", 1_000), 1_000);
    }
}
