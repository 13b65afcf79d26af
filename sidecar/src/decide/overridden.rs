//! Decisions made by overrides alone, without asking the store. Pure.

use std::sync::Arc;

use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{LimitStatus, Verdict};

use super::status;
use crate::policy::Limit;

/// A check that an override decides by itself.
#[derive(Clone, Copy, Debug)]
pub struct Overridden<'a> {
    /// The check.
    pub check: usize,
    /// Its limit.
    pub limit: &'a Arc<Limit>,
    /// Whether it is blocked; otherwise it is unlimited.
    pub is_blocked: bool,
    /// Milliseconds until the override ends, if it has an end.
    pub ends_in_ms: Option<u64>,
}

/// How long a denial may be cached, in milliseconds, given the time until its override ends. The clock was rounded down to
/// milliseconds, so one is subtracted: a certificate may end early but never late.
pub fn hold_until_end(ends_in_ms: Option<u64>) -> u64 {
    ends_in_ms.map_or(u64::MAX, |ends_in_ms| ends_in_ms.saturating_sub(1))
}

impl Overridden<'_> {
    /// The one with the highest rank decides, among several the first: a block does, and of blocks the one that ends last.
    pub fn rank(&self) -> (bool, u64) {
        let ends_in_ms = self.ends_in_ms.unwrap_or(u64::MAX);
        (self.is_blocked, u64::from(self.is_blocked) * ends_in_ms)
    }

    /// The verdict at `unix_us`, in microseconds since 1970: the time of the overrides, which determines the calendar windows
    /// too. `receipt` has a receipt for each check, if they are wanted.
    pub fn verdict(
        &self,
        unix_us: u64,
        denial_ttl_ms: u64,
        receipt: Vec<String>,
    ) -> Verdict<'static> {
        let rank = |spec: &&BucketSpec| match self.is_blocked {
            // A block without an end has no true time. The longest window's length keeps clients from retrying often.
            true => spec.length_us(unix_us),
            // An unlimited key sees the whole quota of the tightest window each time.
            false => u64::MAX - spec.most_at_once(),
        };
        // A limit has at least one window.
        let Some(spec) = self.limit.windows.iter().max_by_key(rank) else {
            return Verdict::Unavailable { then: None };
        };
        let status = status::in_window(self.check, self.limit, spec, unix_us);
        if !self.is_blocked {
            return Verdict::Admitted(LimitStatus {
                remaining: spec.most_at_once(),
                over: 0,
                receipt,
                ..status
            });
        }
        let longest_ms = spec.length_us(unix_us).div_ceil(1_000);
        let again_ms = self.ends_in_ms.unwrap_or(longest_ms);
        Verdict::Denied(LimitStatus {
            reset_ms: again_ms,
            retry_after_ms: again_ms,
            until_changed: self.ends_in_ms.is_none(),
            hold_ms: hold_until_end(self.ends_in_ms).min(denial_ttl_ms),
            ..status
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn of_two_blocks_the_one_without_an_end_decides() {
        let policy = "limits: { l: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";
        let policy = Policy::parse(policy).unwrap();
        let limit = policy.limit("l").unwrap();
        let by = |is_blocked, ends_in_ms| Overridden {
            check: 0,
            limit,
            is_blocked,
            ends_in_ms,
        };
        let block = |ends_in_ms| by(true, ends_in_ms);
        assert!(block(None).rank() > block(Some(5)).rank());
        assert!(block(Some(6)).rank() > block(Some(5)).rank());
        assert!(block(Some(5)).rank() > by(false, None).rank());
        assert_eq!(by(false, None).rank(), by(false, Some(5)).rank());
    }
}
