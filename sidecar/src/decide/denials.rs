//! The sidecar's denial certificates: repeat a denial without asking the store, for as long as it is exact.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use sha2::{Digest, Sha256};
use sluicegate_certificates::{self as certificates, CallTimes, Certificates};
use sluicegate_protocol::{Check, Decision, LimitStatus, Verdict};

use crate::clock;
use crate::lock::lock;

/// Most cached denials; each takes about half a kilobyte.
const CAPACITY: usize = 10_000;

/// A decision of many long keys is known by a hash.
const LONGEST_FINGERPRINT: usize = 256;

/// Most voided (limit, key) pairs that are tracked individually.
const MOST_VOIDED: usize = 10_000;
/// Certificates of the policy in force.
#[derive(Debug)]
pub struct Denials {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The epoch in which all of them were issued.
    epoch: u64,
    /// Increases whenever certificates are voided: an answer to a question asked before must not be cached after.
    generation: u64,
    /// Answers to questions asked before this generation are not cached, for any limit and key.
    oldest: u64,
    certificates: Certificates,
    /// The generations in which (limit, key) pairs were voided, by hash: pairs with the same hash void each other's certificates,
    /// which costs only an extra store call.
    voided: HashMap<u64, u64>,
    /// Random, because clients influence keys.
    seed: RandomState,
}

/// The epoch and generation when a question was asked.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    epoch: u64,
    generation: u64,
    sent_us: u64,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                epoch: 0,
                generation: 0,
                oldest: 0,
                certificates: Certificates::new(CAPACITY),
                voided: HashMap::new(),
                seed: RandomState::new(),
            }),
        }
    }
}

impl Denials {
    /// The current moment; take it before sending the question.
    pub fn moment(&self, epoch: u64) -> Moment {
        Moment {
            epoch,
            generation: lock(&self.state).generation,
            sent_us: clock::now_us(),
        }
    }

    /// The cached denial for a decision, if a certificate covers it.
    pub fn covering(
        &self,
        moment: Moment,
        decision: &Decision<'_>,
    ) -> Option<LimitStatus<'static>> {
        let state = lock(&self.state);
        if state.epoch != moment.epoch || state.certificates.is_empty() {
            return None;
        }
        let status = state
            .certificates
            .covering(&state.fingerprint_of(decision), clock::now_us())?;
        let limit = decision.checks.get(status.check)?.limit.as_ref();
        Some(LimitStatus {
            limit: limit.to_owned().into(),
            ..status
        })
    }

    /// Caches the store's verdict if it is a denial that may be cached.
    pub fn hold(&self, moment: Moment, decision: &Decision<'_>, verdict: &Verdict<'_>) {
        let Verdict::Denied(status) = verdict else {
            return;
        };
        let times = CallTimes {
            sent_us: moment.sent_us,
            answered_us: clock::now_us(),
        };
        let mut state = lock(&self.state);
        let voided = state.voided_in(decision).unwrap_or(0);
        if voided.max(state.oldest) > moment.generation || state.epoch > moment.epoch {
            return;
        }
        if state.epoch < moment.epoch {
            state.certificates.clear();
            state.epoch = moment.epoch;
        }
        let fingerprint = state.fingerprint_of(decision);
        state.certificates.hold(&fingerprint, status, times);
    }

    /// Voids the certificates whose checks include one of these limits and keys: a reset or a settle changed
    /// what is left.
    pub fn void<'a>(&self, checks: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let mut state = lock(&self.state);
        state.generation += 1;
        let generation = state.generation;
        for check in checks {
            let hash = state.seed.hash_one(check);
            state.voided.insert(hash, generation);
        }
        if state.voided.len() > MOST_VOIDED {
            state.voided.clear();
            state.oldest = generation;
            state.certificates.clear();
        }
    }

    /// The number of cached denials.
    pub fn count(&self) -> usize {
        lock(&self.state).certificates.held(clock::now_us())
    }
}

impl State {
    /// The newest generation in which a pair of the decision was voided.
    fn voided_in(&self, decision: &Decision<'_>) -> Option<u64> {
        if self.voided.is_empty() {
            return None;
        }
        let of = |check: &Check<'_>| {
            let check = (check.limit.as_ref(), check.key.as_ref());
            self.voided.get(&self.seed.hash_one(check)).copied()
        };
        decision.checks.iter().filter_map(of).max()
    }

    /// The key of a decision's certificate. It includes the generation of the last voiding, so that an earlier
    /// certificate is not found.
    fn fingerprint_of(&self, decision: &Decision<'_>) -> String {
        let checks = decision.checks.iter();
        let mut fingerprint = certificates::fingerprint(checks.map(|check| {
            let (limit, key) = (check.limit.as_ref(), check.key.as_ref());
            // Other than one that only reads, one that asks can be denied.
            let asks = check.cost == 0 && decision.settles(check);
            let cost = if asks {
                u64::MAX
            } else {
                certificates::cost_in_parts(check.cost, check.most)
            };
            (limit, key, cost, check.quota)
        }));
        if let Some(generation) = self.voided_in(decision) {
            // Writing to a `String` cannot fail.
            let _ = write!(fingerprint, "{generation}");
        }
        if fingerprint.len() > LONGEST_FINGERPRINT {
            let digest = Sha256::digest(&fingerprint);
            fingerprint = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision() -> Decision<'static> {
        let check = Check {
            limit: "l".into(),
            key: "k".into(),
            cost: 1,
            quota: None,
            within_ms: None,
            most: None,
        };
        Decision {
            checks: vec![check],
            peek: false,
            receipt: false,
            shadow: None,
            traceparent: None,
        }
    }

    fn denied() -> Verdict<'static> {
        Verdict::Denied(LimitStatus {
            check: 0,
            limit: "l".into(),
            quota: 1,
            window_ms: 60_000,
            remaining: 0,
            over: 0,
            reset_ms: 60_000,
            retry_after_ms: 60_000,
            until_changed: false,
            at_once: false,
            calendar: None,
            hold_ms: 60_000,
            unknown: Vec::new(),
            receipt: Vec::new(),
        })
    }

    #[test]
    fn a_denial_covers_the_same_decision_of_the_same_epoch_only() {
        let denials = Denials::default();
        denials.hold(denials.moment(1), &decision(), &denied());
        let held = denials.covering(denials.moment(1), &decision()).unwrap();
        assert_eq!(held.limit, "l");
        let covers =
            |epoch, asked: &Decision<'_>| denials.covering(denials.moment(epoch), asked).is_some();
        assert!(!covers(2, &decision()), "the policy was reloaded");
        let mut dearer = decision();
        dearer.checks[0].cost = 2;
        assert!(!covers(1, &dearer));
        denials.hold(denials.moment(2), &dearer, &denied());
        assert!(!covers(1, &decision()), "a newer epoch has taken over");
    }

    #[test]
    fn an_answer_to_a_question_of_an_earlier_epoch_is_not_held() {
        let denials = Denials::default();
        let before = denials.moment(1);
        let mut other = decision();
        other.checks[0].key = "other".into();
        denials.hold(denials.moment(2), &other, &denied());
        denials.hold(before, &decision(), &denied());
        let now = denials.moment(2);
        assert!(denials.covering(now, &decision()).is_none());
        // It voids no other.
        assert!(denials.covering(now, &other).is_some());
    }

    #[test]
    fn what_was_asked_before_a_reset_is_not_held_after_it() {
        let denials = Denials::default();
        let before = denials.moment(1);
        denials.void([("l", "k")]);
        denials.hold(before, &decision(), &denied());
        assert!(denials.count() == 0);
        // Asked for after it.
        denials.hold(denials.moment(1), &decision(), &denied());
        assert!(denials.covering(denials.moment(1), &decision()).is_some());
        denials.void([("l", "k")]);
        assert!(denials.covering(denials.moment(1), &decision()).is_none());
    }

    #[test]
    fn a_settle_leaves_the_certificates_of_others() {
        let denials = Denials::default();
        let mut other = decision();
        other.checks[0].key = "other".into();
        let mut both = decision();
        both.checks.extend(other.checks.clone());
        let before = denials.moment(1);
        for decision in [&decision(), &other, &both] {
            denials.hold(before, decision, &denied());
        }
        denials.void([("l", "k")]);
        let now = denials.moment(1);
        let held = |decision: &Decision<'_>| denials.covering(now, decision).is_some();
        assert!(held(&other), "another key's");
        assert!(!held(&decision()) && !held(&both));
        let mut other_limit = other.clone();
        other_limit.checks[0].limit = "m".into();
        denials.hold(before, &other_limit, &denied());
        assert!(held(&other_limit), "asked for before, about something else");
    }

    #[test]
    fn very_many_settles_make_all_certificates_void_and_stay_bounded() {
        let denials = Denials::default();
        let before = denials.moment(1);
        denials.hold(before, &decision(), &denied());
        let keys: Vec<_> = (0..=MOST_VOIDED).map(|n| n.to_string()).collect();
        denials.void(keys.iter().map(|key| ("other", key.as_str())));
        assert!(lock(&denials.state).voided.is_empty());
        assert!(denials.count() == 0);
        denials.hold(before, &decision(), &denied());
        assert!(denials.count() == 0, "asked for before");
        denials.hold(denials.moment(1), &decision(), &denied());
        assert_eq!(denials.count(), 1);
    }
}
