//! Denial certificates: denials that the filter and the sidecar cache for as long as they are exact.
//!
//! A certificate covers decisions with exactly the checks and costs that were denied. (One bucket's denial would also
//! cover larger costs and decisions with more checks, but their retry-after would be a guess.) No capacity can come
//! back before the certificate ends, so until then the store would deny the decision too.
//!
//! Times are microseconds of the caller's clock, which must not step.
//!
//! Beside them, in `ledger.rs`, what both spend without asking: units that were granted in advance.

mod ledger;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use ledger::{Grant, Held, Ledger, Taken};
use sluicegate_protocol::{LimitStatus, MAX_HOLD_MS};

/// Cached denials. If the cache is full, the one that ends first is evicted.
#[derive(Debug)]
pub struct Certificates {
    capacity: usize,
    held: BTreeMap<Arc<str>, Denial>,
    ends: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Denial {
    /// The certificate is valid until this time.
    ends_us: u64,
    /// When the answer arrived: the times of the status count from here.
    answered_us: u64,
    /// Numbers only. The caller knows the limit's name by `check`; a receipt, which no denial should have, is dropped.
    status: LimitStatus<'static>,
}

/// When a question was sent and its answer arrived.
#[derive(Clone, Copy, Debug)]
pub struct CallTimes {
    /// Before the question was sent. Certificates count from here, so that they end early and never late.
    pub sent_us: u64,
    /// When the answer arrived. Retry-after and reset count from here, so that they are late and never early.
    pub answered_us: u64,
}

impl Certificates {
    /// A cache for at most `capacity` denials.
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            held: BTreeMap::new(),
            ends: BTreeSet::new(),
        }
    }

    /// Caches a denial for its `hold_ms`, if that is not 0, and for at most [`MAX_HOLD_MS`].
    pub fn hold(&mut self, fingerprint: &str, status: &LimitStatus<'_>, times: CallTimes) {
        let ends_us = times
            .sent_us
            .saturating_add(status.hold_ms.min(MAX_HOLD_MS) * 1_000);
        if ends_us <= times.answered_us || self.capacity == 0 {
            return;
        }
        self.drop_ended(times.answered_us);
        self.forget(fingerprint);
        if self.held.len() >= self.capacity
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.held.remove(&first);
        }
        let fingerprint: Arc<str> = fingerprint.into();
        self.ends.insert((ends_us, Arc::clone(&fingerprint)));
        let status = LimitStatus {
            limit: Cow::Borrowed(""),
            unknown: Vec::new(),
            receipt: Vec::new(),
            ..status.clone().into_owned()
        };
        let denial = Denial {
            ends_us,
            answered_us: times.answered_us,
            status,
        };
        self.held.insert(fingerprint, denial);
    }

    /// The denial of a decision at `now_us`, as the store would give it then, except for the limit's name. That is
    /// empty; the caller knows it from the check with the index `check`.
    pub fn covering(&self, fingerprint: &str, now_us: u64) -> Option<LimitStatus<'static>> {
        let denial = self.held.get(fingerprint)?;
        let hold_us = denial.ends_us.checked_sub(now_us).filter(|us| *us > 0)?;
        // Without an end, nothing comes nearer.
        let passes = u64::from(!denial.status.until_changed);
        let passed_ms = now_us.saturating_sub(denial.answered_us) / 1_000 * passes;
        // Of slots, nobody knows when they reset: that is 0.
        let left = |ms: u64| ms.saturating_sub(passed_ms).max(ms.min(1));
        Some(LimitStatus {
            reset_ms: left(denial.status.reset_ms),
            retry_after_ms: left(denial.status.retry_after_ms),
            hold_ms: hold_us / 1_000,
            ..denial.status.clone()
        })
    }

    /// Removes the denials of decisions with a check of such a limit and key.
    pub fn end(&mut self, is_over: impl Fn(&str, &str) -> bool) {
        let is_over = |text: &str| checks_of(text).any(|(limit, key)| is_over(limit, key));
        let over = self.held.keys().filter(|fingerprint| is_over(fingerprint));
        let over: Vec<_> = over.cloned().collect();
        over.iter().for_each(|fingerprint| self.forget(fingerprint));
    }

    /// Removes everything: decisions that were denied may be admitted now.
    pub fn clear(&mut self) {
        self.held.clear();
        self.ends.clear();
    }

    /// Number of denials that are cached at `now_us`.
    pub fn held(&mut self, now_us: u64) -> usize {
        self.drop_ended(now_us);
        self.len()
    }

    /// Number of denials in the cache, including some that have ended.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn forget(&mut self, fingerprint: &str) {
        if let Some((fingerprint, denial)) = self.held.remove_entry(fingerprint) {
            self.ends.remove(&(denial.ends_us, fingerprint));
        }
    }

    fn drop_ended(&mut self, now_us: u64) {
        while let Some((ends_us, _)) = self.ends.first()
            && *ends_us <= now_us
        {
            if let Some((_, fingerprint)) = self.ends.pop_first() {
                self.held.remove(&fingerprint);
            }
        }
    }
}

/// Identifies a decision by its limits, keys, costs and requested quotas. Different lists of checks have different
/// fingerprints, so a denial under one quota never answers for another.
pub fn fingerprint<'a>(
    checks: impl IntoIterator<Item = (&'a str, &'a str, u64, Option<u64>)>,
) -> String {
    // Capacity for a decision with one check. No format string, because the filter does this for every request.
    let mut text = String::with_capacity(128);
    let mut digits = itoa::Buffer::new();
    for (limit, key, cost, quota) in checks {
        // With their lengths, because a key can contain any character.
        for part in [limit, key] {
            text.push_str(digits.format(part.len()));
            text.push(':');
            text.push_str(part);
        }
        text.push_str(digits.format(cost));
        if let Some(quota) = quota {
            text.push('/');
            text.push_str(digits.format(quota));
        }
        text.push(';');
    }
    text
}

/// A cost in a fingerprint, of which so many percent of the quota are taken at most: a denial of less does not say when all would be
/// admitted.
pub fn cost_in_parts(cost: u64, most: Option<u64>) -> u64 {
    // Costs have 32 bits.
    cost | most.unwrap_or(0) << 40
}

/// The limits and keys in a fingerprint.
fn checks_of(mut text: &str) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let mut part = || {
            let (length, rest) = text.split_once(':')?;
            let (part, rest) = rest.split_at_checked(length.parse().ok()?)?;
            text = rest;
            Some(part)
        };
        let check = (part()?, part()?);
        (_, text) = text.split_once(';')?;
        Some(check)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(hold_ms: u64, retry_after_ms: u64) -> LimitStatus<'static> {
        LimitStatus {
            check: 0,
            limit: "per-key".into(),
            quota: 5,
            window_ms: 60_000,
            remaining: 0,
            over: 0,
            reset_ms: 50_000,
            retry_after_ms,
            until_changed: false,
            at_once: false,
            calendar: None,
            hold_ms,
            unknown: Vec::new(),
            receipt: Vec::new(),
        }
    }

    const TIMES: CallTimes = CallTimes {
        sent_us: 1_000_000,
        answered_us: 1_010_000,
    };

    #[test]
    fn hold_counts_from_the_question_and_retry_after_from_the_answer() {
        let mut certificates = Certificates::new(10);
        certificates.hold("a", &status(1_000, 5_000), TIMES);
        let later = certificates.covering("a", 1_510_000).unwrap();
        let given = (later.retry_after_ms, later.reset_ms, later.hold_ms);
        assert_eq!(given, (4_500, 49_500, 490));
        assert!(certificates.covering("a", 1_999_999).is_some());
        assert!(
            certificates.covering("a", 2_000_000).is_none(),
            "not 2,010,000: the call took 10 ms"
        );
        assert!(certificates.covering("b", 1_510_000).is_none());
        let slots = LimitStatus {
            reset_ms: 0,
            ..status(20, 1)
        };
        certificates.hold("s", &slots, TIMES);
        let later = certificates.covering("s", 1_012_000).unwrap();
        assert_eq!((later.retry_after_ms, later.reset_ms), (1, 0));
    }

    #[test]
    fn a_denial_without_a_hold_or_with_a_late_answer_is_not_kept() {
        let mut certificates = Certificates::new(10);
        certificates.hold("a", &status(0, 5_000), TIMES);
        certificates.hold("b", &status(10, 5_000), TIMES);
        assert!(certificates.is_empty());
        let mut none = Certificates::new(0);
        none.hold("a", &status(1_000, 5_000), TIMES);
        assert!(none.is_empty());
    }

    #[test]
    fn a_hold_is_clamped_and_neither_limit_text_nor_receipt_is_held() {
        const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3_600_000;
        for hold_ms in [TEN_YEARS_MS, u64::MAX] {
            let mut certificates = Certificates::new(10);
            let mut denied = status(hold_ms, hold_ms);
            denied.limit = "x".repeat(1_000_000).into();
            denied.receipt = vec!["7".to_owned(); 1_000];
            certificates.hold("a", &denied, TIMES);
            let ends_us = TIMES.sent_us + MAX_HOLD_MS * 1_000;
            let held = certificates.covering("a", ends_us - 1).unwrap();
            let given = (held.limit.as_ref(), held.receipt);
            assert_eq!(given, ("", Vec::<String>::new()));
            assert!(certificates.covering("a", ends_us).is_none());
        }
    }

    #[test]
    fn the_table_is_bounded_and_evicts_what_ends_first() {
        let mut certificates = Certificates::new(2);
        certificates.hold("long", &status(900, 900), TIMES);
        certificates.hold("short", &status(100, 900), TIMES);
        certificates.hold("new", &status(500, 900), TIMES);
        let holds = |name| certificates.covering(name, TIMES.answered_us).is_some();
        let given = (holds("long"), holds("short"), holds("new"));
        assert_eq!(given, (true, false, true));
        let later = CallTimes {
            sent_us: 10_000_000,
            answered_us: 10_000_001,
        };
        certificates.hold("only", &status(500, 900), later);
        assert_eq!(certificates.len(), 1, "what has ended makes room");
        assert_eq!(certificates.held(10_499_999), 1);
        assert_eq!(certificates.held(10_500_000), 0);
    }

    #[test]
    fn the_denials_of_some_checks_end_alone() {
        let mut certificates = Certificates::new(10);
        let decisions: [&[_]; 4] = [
            &[("a", "1:b1:k1;", 1, None)],
            &[("b", "k", 1, Some(5))],
            &[("b", "other", 1, None)],
            &[("a", "é", 1, None), ("b", "k", 2, None)],
        ];
        let fingerprints = decisions.map(|checks| fingerprint(checks.iter().copied()));
        for of in &fingerprints {
            certificates.hold(of, &status(1_000, 5_000), TIMES);
        }
        certificates.end(|limit, key| (limit, key) == ("b", "k"));
        let held = fingerprints.map(|of| certificates.covering(&of, 1_510_000).is_some());
        assert_eq!(held, [true, false, true, false]);
        assert_eq!(certificates.ends.len(), 2);
    }

    #[test]
    fn different_decisions_have_different_fingerprints() {
        let fingerprints = [
            fingerprint([("a", "b", 1, None)]),
            fingerprint([("a", "b", 11, None)]),
            fingerprint([("a", "b", 1, Some(1))]),
            fingerprint([("a", "b", 1, Some(11))]),
            fingerprint([("ab", "", 1, None)]),
            fingerprint([("a", "b1;1:a1:b", 1, None)]),
            fingerprint([("a", "b", 1, None), ("a", "b", 1, None)]),
        ];
        let distinct: BTreeSet<_> = fingerprints.iter().collect();
        assert_eq!(distinct.len(), fingerprints.len());
    }
}
