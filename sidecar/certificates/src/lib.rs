//! Denial certificates: denials that are remembered, in the filter and in the sidecar, for as long as they stay exact.
//!
//! A certificate covers a decision with just the checks and costs that were denied. (One bucket's denial would also
//! cover larger costs and other company; but what it could say of their retry-after would be a guess.)
//! Capacity cannot come back before its end, so denying from it is the answer that the store would have given.
//!
//! Times are microseconds of a clock that does not step, the caller's own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluicegate_protocol::{MAX_HOLD_MS, Standing};

/// Denials held, bounded; the one that ends first goes first.
#[derive(Debug)]
pub struct Certificates {
    capacity: usize,
    held: BTreeMap<Arc<str>, Held>,
    ends: BTreeSet<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Held {
    /// Not to be used from here on.
    ends_us: u64,
    /// When the answer was here: what the times below are counted from.
    answered_us: u64,
    // Numbers only. The limit's name is the asker's own, by `check`; a receipt, which no denial should have, is dropped.
    check: usize,
    quota: u64,
    window_ms: u64,
    remaining: u64,
    reset_ms: u64,
    retry_after_ms: u64,
}

/// When a denial was asked for and answered.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Before the question left: certificates are timed from here, so that they end early and never late.
    pub sent_us: u64,
    /// When the answer was here: promises to the client are timed from here, so that they are late and never early.
    pub answered_us: u64,
}

impl Certificates {
    /// Room for so many denials.
    pub const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            held: BTreeMap::new(),
            ends: BTreeSet::new(),
        }
    }

    /// Remembers a denial for its `hold_ms`, if it has any, and at most for [`MAX_HOLD_MS`].
    pub fn hold(&mut self, fingerprint: &str, standing: &Standing<'_>, asked: Asked) {
        let ends_us = asked
            .sent_us
            .saturating_add(standing.hold_ms.min(MAX_HOLD_MS) * 1_000);
        if ends_us <= asked.answered_us || self.capacity == 0 {
            return;
        }
        self.drop_ended(asked.answered_us);
        self.forget(fingerprint);
        if self.held.len() >= self.capacity
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.held.remove(&first);
        }
        let fingerprint: Arc<str> = fingerprint.into();
        self.ends.insert((ends_us, Arc::clone(&fingerprint)));
        let held = Held {
            ends_us,
            answered_us: asked.answered_us,
            check: standing.check,
            quota: standing.quota,
            window_ms: standing.window_ms,
            remaining: standing.remaining,
            reset_ms: standing.reset_ms,
            retry_after_ms: standing.retry_after_ms,
        };
        self.held.insert(fingerprint, held);
    }

    /// The denial of a decision at `now_us`, as the store would give it then, but for the limit's name: that is empty, and
    /// whoever asks knows it as the limit of the check that `check` names.
    pub fn covering(&self, fingerprint: &str, now_us: u64) -> Option<Standing<'static>> {
        let held = self
            .held
            .get(fingerprint)
            .filter(|held| now_us < held.ends_us)?;
        let passed_ms = now_us.saturating_sub(held.answered_us) / 1_000;
        Some(Standing {
            check: held.check,
            limit: Cow::Borrowed(""),
            quota: held.quota,
            window_ms: held.window_ms,
            remaining: held.remaining,
            reset_ms: held.reset_ms.saturating_sub(passed_ms).max(1),
            retry_after_ms: held.retry_after_ms.saturating_sub(passed_ms).max(1),
            hold_ms: (held.ends_us - now_us) / 1_000,
            receipt: Vec::new(),
        })
    }

    /// Forgets everything: what was denied may be admitted now.
    pub fn clear(&mut self) {
        self.held.clear();
        self.ends.clear();
    }

    /// How many are held at `now_us`.
    pub fn held(&mut self, now_us: u64) -> usize {
        self.drop_ended(now_us);
        self.len()
    }

    /// How many are held, those included that have ended since one was added.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// None is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn forget(&mut self, fingerprint: &str) {
        if let Some((fingerprint, held)) = self.held.remove_entry(fingerprint) {
            self.ends.remove(&(held.ends_us, fingerprint));
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

/// What tells decisions apart: every limit, key and cost. No two different lists give the same text.
pub fn fingerprint<'a>(checks: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> String {
    // Room for a decision of one check. Without a format string: the filter does this for every request.
    let mut text = String::with_capacity(128);
    let mut digits = itoa::Buffer::new();
    for (limit, key, cost) in checks {
        // With their lengths, since a key may hold any character.
        for part in [limit, key] {
            text.push_str(digits.format(part.len()));
            text.push(':');
            text.push_str(part);
        }
        text.push_str(digits.format(cost));
        text.push(';');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(hold_ms: u64, retry_after_ms: u64) -> Standing<'static> {
        Standing {
            check: 0,
            limit: "per-key".into(),
            quota: 5,
            window_ms: 60_000,
            remaining: 0,
            reset_ms: 50_000,
            retry_after_ms,
            hold_ms,
            receipt: Vec::new(),
        }
    }

    const ASKED: Asked = Asked {
        sent_us: 1_000_000,
        answered_us: 1_010_000,
    };

    #[test]
    fn a_denial_is_held_from_before_it_was_asked_for_and_promises_from_when_it_was_answered() {
        let mut certificates = Certificates::new(10);
        certificates.hold("a", &standing(1_000, 5_000), ASKED);
        let later = certificates.covering("a", 1_510_000).unwrap();
        assert_eq!(
            (later.retry_after_ms, later.reset_ms, later.hold_ms),
            (4_500, 49_500, 490)
        );
        assert!(certificates.covering("a", 1_999_999).is_some());
        assert!(
            certificates.covering("a", 2_000_000).is_none(),
            "not 2,010,000: the call took 10 ms"
        );
        assert!(certificates.covering("b", 1_510_000).is_none());
    }

    #[test]
    fn what_may_not_be_held_or_took_too_long_is_not() {
        let mut certificates = Certificates::new(10);
        certificates.hold("a", &standing(0, 5_000), ASKED);
        certificates.hold("b", &standing(10, 5_000), ASKED);
        assert!(certificates.is_empty());
        let mut none = Certificates::new(0);
        none.hold("a", &standing(1_000, 5_000), ASKED);
        assert!(none.is_empty());
    }

    #[test]
    fn f15_a_hold_is_clamped_and_neither_limit_text_nor_receipt_is_held() {
        const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3_600_000;
        for hold_ms in [TEN_YEARS_MS, u64::MAX] {
            let mut certificates = Certificates::new(10);
            let mut denied = standing(hold_ms, hold_ms);
            denied.limit = "x".repeat(1_000_000).into();
            denied.receipt = vec!["7".to_owned(); 1_000];
            certificates.hold("a", &denied, ASKED);
            let ends_us = ASKED.sent_us + MAX_HOLD_MS * 1_000;
            let held = certificates.covering("a", ends_us - 1).unwrap();
            assert_eq!(
                (held.limit.as_ref(), held.receipt),
                ("", Vec::<String>::new())
            );
            assert!(certificates.covering("a", ends_us).is_none());
        }
    }

    #[test]
    fn the_table_is_bounded_and_the_first_to_end_goes_first() {
        let mut certificates = Certificates::new(2);
        certificates.hold("long", &standing(900, 900), ASKED);
        certificates.hold("short", &standing(100, 900), ASKED);
        certificates.hold("new", &standing(500, 900), ASKED);
        let holds = |name| certificates.covering(name, ASKED.answered_us).is_some();
        assert_eq!(
            (holds("long"), holds("short"), holds("new")),
            (true, false, true)
        );
        let later = Asked {
            sent_us: 10_000_000,
            answered_us: 10_000_001,
        };
        certificates.hold("only", &standing(500, 900), later);
        assert_eq!(certificates.len(), 1, "what has ended makes room");
        assert_eq!(certificates.held(10_499_999), 1);
        assert_eq!(certificates.held(10_500_000), 0);
    }

    #[test]
    fn different_decisions_have_different_fingerprints() {
        let prints = [
            fingerprint([("a", "b", 1)]),
            fingerprint([("a", "b", 11)]),
            fingerprint([("ab", "", 1)]),
            fingerprint([("a", "b1;1:a1:b", 1)]),
            fingerprint([("a", "b", 1), ("a", "b", 1)]),
        ];
        let distinct: BTreeSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
    }
}
