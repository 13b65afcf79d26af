//! Decisions made by overrides alone, without asking the store. Pure.

use std::sync::Arc;

use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{LimitStatus, Verdict};

use super::receipts;
use crate::policy::Limit;

/// A decision made by overrides.
#[derive(Debug)]
pub struct Overridden {
    /// The check that decided.
    pub check: usize,
    /// Its limit.
    pub limit: Arc<Limit>,
    /// How it was decided.
    pub how: How,
    /// When, in microseconds since 1970: the time of the overrides, which determines the calendar windows too.
    pub unix_us: u64,
}

/// How overrides decide.
#[derive(Debug)]
pub enum How {
    /// All checks are unlimited.
    Admitted {
        /// One secret for each check, if receipts are wanted.
        receipts: Vec<u128>,
    },
    /// A check is blocked.
    Denied {
        /// Milliseconds until the block ends, if it has an end.
        ends_in_ms: Option<u64>,
    },
}

/// Whether the first of two blocks ends later than the other; `None`: it never ends.
pub fn ends_later(one: Option<u64>, other: Option<u64>) -> bool {
    one.unwrap_or(u64::MAX) > other.unwrap_or(u64::MAX)
}

/// How long a denial may be cached, in milliseconds, given the time until its override ends. The clock was rounded down to
/// milliseconds, so one is subtracted: a certificate may end early but never late.
pub fn hold_until_end(ends_in_ms: Option<u64>) -> u64 {
    ends_in_ms.map_or(u64::MAX, |ends_in_ms| ends_in_ms.saturating_sub(1))
}

impl Overridden {
    /// The verdict.
    pub fn verdict(&self, denial_ttl_ms: u64) -> Verdict<'_> {
        match &self.how {
            How::Admitted { receipts } => {
                // An unlimited key sees the whole quota of the tightest window each time.
                let Some(spec) = self.window(|spec| u64::MAX - spec.most_at_once()) else {
                    return Verdict::Unavailable { then: None };
                };
                let receipt = receipts.iter().map(|secret| receipts::to_text(*secret));
                Verdict::Admitted(LimitStatus {
                    remaining: spec.most_at_once(),
                    receipt: receipt.collect(),
                    ..self.status(spec)
                })
            }
            How::Denied { ends_in_ms } => {
                let Some(spec) = self.window(|spec| spec.length_us(self.unix_us)) else {
                    return Verdict::Unavailable { then: None };
                };
                // A block without an end has no true time. The longest window's length keeps clients from retrying often.
                let again_ms =
                    ends_in_ms.unwrap_or_else(|| spec.length_us(self.unix_us).div_ceil(1_000));
                Verdict::Denied(LimitStatus {
                    reset_ms: again_ms,
                    retry_after_ms: again_ms,
                    hold_ms: hold_until_end(*ends_in_ms).min(denial_ttl_ms),
                    ..self.status(spec)
                })
            }
        }
    }

    /// The policy's window with the largest value of `most`. A limit has at least one window.
    fn window(&self, most: impl Fn(&BucketSpec) -> u64) -> Option<&BucketSpec> {
        self.limit.windows.iter().max_by_key(|spec| most(spec))
    }

    fn status(&self, spec: &BucketSpec) -> LimitStatus<'_> {
        LimitStatus {
            check: self.check,
            limit: self.limit.name.as_str().into(),
            quota: spec.most_at_once(),
            window_ms: spec.refill_us(self.unix_us).div_ceil(1_000),
            remaining: 0,
            reset_ms: 0,
            retry_after_ms: 0,
            hold_ms: 0,
            receipt: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_blocks_the_one_without_an_end_decides() {
        assert!(ends_later(None, Some(5)) && !ends_later(Some(5), None));
        assert!(ends_later(Some(6), Some(5)) && !ends_later(Some(5), Some(5)));
        assert!(!ends_later(None, None), "the first");
    }
}
