//! Throttles log lines about repeated failures. Pure.
//!
//! While the store is down, thousands of calls fail each second. The first failure of each kind is logged at once, then
//! one line every [`EVERY_US`] with the number of failures since the last, and one line when the outage is over.

use std::collections::BTreeMap;

use super::labels::FailureKind;

/// Shortest time between two lines that share a [`Throttle`], microseconds.
pub const EVERY_US: u64 = 10_000_000;

/// Throttles one kind of line.
#[derive(Debug, Default)]
pub struct Throttle {
    logged_us: Option<u64>,
    /// Since the last line.
    times: u64,
}

impl Throttle {
    /// Counts an occurrence. `Some` means that it should be logged, with how often it occurred since the last line.
    pub fn occurred(&mut self, now_us: u64) -> Option<u64> {
        self.times += 1;
        let is_recent = |logged_us| now_us.saturating_sub(logged_us) < EVERY_US;
        if self.logged_us.is_some_and(is_recent) {
            return None;
        }
        self.logged_us = Some(now_us);
        Some(std::mem::take(&mut self.times))
    }
}

/// Failures that were not logged yet, by kind, and the outage that they belong to.
#[derive(Debug, Default)]
pub struct FailureThrottle {
    kinds: BTreeMap<FailureKind, Throttle>,
    outage: Option<Outage>,
    /// Whether a failure was logged: the end of a flapping store's outages is logged as rarely as their beginning.
    is_logged: bool,
}

/// An outage. A call that fails while there is none, because its answer was late, begins none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it began.
    pub since_us: u64,
    /// Calls that failed since then.
    pub failed: u64,
}

impl FailureThrottle {
    /// Notes that an outage began then, unless one is under way.
    pub fn began(&mut self, since_us: u64) {
        let failed = 0;
        self.outage.get_or_insert(Outage { since_us, failed });
    }

    /// Counts a failed call. `Some` means that it should be logged, with the number of failures of this kind since the last
    /// line.
    pub fn failed(&mut self, now_us: u64, kind: FailureKind) -> Option<u64> {
        let logged = self.kinds.entry(kind).or_default().occurred(now_us);
        self.is_logged |= logged.is_some();
        if let Some(outage) = &mut self.outage {
            outage.failed += 1;
        }
        logged
    }

    /// Notes the end of an outage. `Some` means that it should be logged.
    pub fn succeeded(&mut self) -> Option<Outage> {
        let is_logged = std::mem::take(&mut self.is_logged);
        let over = self.outage.take().filter(|_| is_logged)?;
        // The line about the end of the outage counts them.
        for kind in self.kinds.values_mut() {
            kind.times = 0;
        }
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{Connection, Timeout};

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_repeated_failure_is_logged_at_once_and_then_with_a_count() {
        let mut throttle = FailureThrottle::default();
        throttle.began(0);
        // 1,000 a second for 25 s.
        let mut logged = Vec::new();
        for call in 0..25_000 {
            let now_us = call * 1_000;
            if let Some(times) = throttle.failed(now_us, Timeout) {
                logged.push((now_us / SECOND, times));
            }
        }
        assert_eq!(logged, [(0, 1), (10, 10_000), (20, 10_000)]);
        let over = Outage {
            since_us: 0,
            failed: 25_000,
        };
        assert_eq!(throttle.succeeded(), Some(over));
        assert_eq!(throttle.succeeded(), None);
    }

    #[test]
    fn an_outage_that_was_not_logged_has_no_end() {
        let mut throttle = FailureThrottle::default();
        throttle.began(0);
        throttle.failed(0, Timeout);
        assert_eq!(throttle.succeeded().unwrap().failed, 1);
        throttle.began(2 * SECOND);
        assert_eq!(throttle.failed(2 * SECOND, Timeout), None);
        assert_eq!(throttle.succeeded(), None);
        throttle.began(100 * SECOND);
        assert_eq!(throttle.failed(100 * SECOND, Timeout), Some(2));
        let over = throttle.succeeded().unwrap();
        assert_eq!((over.since_us, over.failed), (100 * SECOND, 1));
    }

    /// One late answer, 15 s of health and 5 s of an outage were told as an outage of 20 s.
    #[test]
    fn an_outage_begins_when_the_store_went_down_and_not_with_an_earlier_late_answer() {
        let mut throttle = FailureThrottle::default();
        assert_eq!(throttle.failed(0, Timeout), Some(1));
        throttle.began(15 * SECOND);
        throttle.failed(15 * SECOND, Connection);
        throttle.began(16 * SECOND);
        throttle.failed(17 * SECOND, Connection);
        let over = throttle.succeeded().unwrap();
        assert_eq!((over.since_us, over.failed), (15 * SECOND, 2));
    }

    #[test]
    fn each_kind_of_failure_is_logged_separately() {
        let mut throttle = FailureThrottle::default();
        throttle.began(0);
        assert_eq!(throttle.failed(0, Timeout), Some(1));
        assert_eq!(throttle.failed(1, Connection), Some(1));
        assert_eq!(throttle.failed(2, Timeout), None);
        assert_eq!(throttle.failed(EVERY_US, Timeout), Some(2));
        assert_eq!(throttle.failed(EVERY_US, Connection), None);
        assert_eq!(throttle.succeeded().unwrap().failed, 5);
    }

    #[test]
    fn a_flapping_store_is_not_logged_each_time() {
        let mut throttle = FailureThrottle::default();
        let mut lines = 0;
        for turn in 0..100_000 {
            let now_us = turn * 1_000;
            throttle.began(now_us);
            lines += usize::from(throttle.failed(now_us, Timeout).is_some());
            lines += usize::from(throttle.succeeded().is_some());
        }
        // 100 s.
        assert!((19..=21).contains(&lines), "{lines}");
    }
}
