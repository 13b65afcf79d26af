//! Failures that repeat, as one line with a count. Pure.
//!
//! A store that is away fails thousands of calls a second. Of each kind the first is told at once, then one line every
//! [`EVERY_US`] with how many there were since; and one line when it is over.

use std::collections::BTreeMap;

use super::labels::FailureKind;

/// Between two lines about the same kind, and between two that say that it is over, microseconds.
pub const EVERY_US: u64 = 10_000_000;

/// What has failed and not been told yet.
#[derive(Debug, Default)]
pub struct Repeats {
    kinds: BTreeMap<FailureKind, Kind>,
    outage: Option<Outage>,
    /// When a line last said that it was over: a store that comes and goes would say so thousands of times a second.
    closed_us: Option<u64>,
}

#[derive(Debug)]
struct Kind {
    told_us: u64,
    untold: u64,
}

#[derive(Debug)]
struct Outage {
    since_us: u64,
    /// When a call first succeeded after the last that failed.
    over_us: Option<u64>,
    failed: u64,
}

/// It is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// How long it took from the first failure to the first success after the last, microseconds.
    pub after_us: u64,
    /// Calls that failed.
    pub failed: u64,
}

impl Repeats {
    /// A call has failed. To be told if there is a number: of failures of the kind since the last line about it that were
    /// not told.
    pub fn failed(&mut self, now_us: u64, kind: FailureKind) -> Option<u64> {
        let outage = self.outage.get_or_insert(Outage {
            since_us: now_us,
            over_us: None,
            failed: 0,
        });
        outage.failed += 1;
        outage.over_us = None;
        match self.kinds.get_mut(&kind) {
            Some(known) if now_us.saturating_sub(known.told_us) < EVERY_US => {
                known.untold += 1;
                None
            }
            known => {
                let untold = known.map_or(0, |known| known.untold);
                let told = Kind {
                    told_us: now_us,
                    untold: 0,
                };
                self.kinds.insert(kind, told);
                Some(untold)
            }
        }
    }

    /// A call has succeeded. To be told if there is something.
    pub fn succeeded(&mut self, now_us: u64) -> Option<Over> {
        let outage = self.outage.as_mut()?;
        let over_us = *outage.over_us.get_or_insert(now_us);
        if let Some(closed_us) = self.closed_us
            && now_us.saturating_sub(closed_us) < EVERY_US
        {
            return None;
        }
        let over = Over {
            after_us: over_us.saturating_sub(outage.since_us),
            failed: outage.failed,
        };
        self.outage = None;
        self.closed_us = Some(now_us);
        // Their number is in this line.
        for kind in self.kinds.values_mut() {
            kind.untold = 0;
        }
        Some(over)
    }

    /// Nothing has failed that is not over.
    pub const fn is_calm(&self) -> bool {
        self.outage.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FailureKind::{Connection, Timeout};

    const SECOND: u64 = 1_000_000;

    #[test]
    fn s19_a_failure_that_repeats_is_told_at_once_and_then_with_a_count() {
        let mut repeats = Repeats::default();
        // 1,000 a second for 25 s.
        let mut told = Vec::new();
        for call in 0..25_000 {
            let now_us = call * 1_000;
            if let Some(repeated) = repeats.failed(now_us, Timeout) {
                told.push((now_us / SECOND, repeated));
            }
        }
        assert_eq!(told, [(0, 0), (10, 9_999), (20, 9_999)]);
        assert_eq!(
            repeats.succeeded(26 * SECOND),
            Some(Over {
                after_us: 26 * SECOND,
                failed: 25_000
            })
        );
        assert_eq!(repeats.succeeded(26 * SECOND), None);
        assert!(repeats.is_calm());
    }

    #[test]
    fn s19_each_kind_is_told_by_itself() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.failed(0, Timeout), Some(0));
        assert_eq!(repeats.failed(1, Connection), Some(0));
        assert_eq!(repeats.failed(2, Timeout), None);
        assert_eq!(repeats.failed(EVERY_US, Timeout), Some(1));
        assert_eq!(repeats.failed(EVERY_US, Connection), None);
        assert_eq!(repeats.succeeded(EVERY_US).unwrap().failed, 5);
    }

    #[test]
    fn s19_a_store_that_comes_and_goes_is_not_told_each_time() {
        let mut repeats = Repeats::default();
        let mut lines = 0;
        for turn in 0..100_000 {
            let now_us = turn * 1_000;
            lines += usize::from(repeats.failed(now_us, Timeout).is_some());
            lines += usize::from(repeats.succeeded(now_us + 500).is_some());
        }
        // 100 s.
        assert!((19..=21).contains(&lines), "{lines}");
        // What is over is told later, with the time at which it was.
        assert!(!repeats.is_calm());
        let over = repeats.succeeded(200 * SECOND).unwrap();
        assert!(over.after_us <= 10 * SECOND, "{over:?}");
        assert!(over.failed <= 10_000, "{over:?}");
    }
}
