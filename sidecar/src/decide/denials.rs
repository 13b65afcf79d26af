//! The sidecar's denial certificates: what was denied is denied again without asking the store, while that is exact.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluicegate_certificates::{Asked, Certificates, fingerprint};
use sluicegate_protocol::{Decision, Standing, Verdict};

use crate::clock;

/// Denials held at once; about half a kilobyte each.
const CAPACITY: usize = 10_000;

/// Certificates of the policy in force.
#[derive(Debug)]
pub struct Denials {
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// The policy's epoch that all of them are of.
    epoch: u64,
    /// Grows whenever all of them are made void: a denial that was asked for before must not be held after.
    generation: u64,
    certificates: Certificates,
}

/// What was in force when a decision was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    epoch: u64,
    generation: u64,
    sent_us: u64,
}

impl Default for Denials {
    fn default() -> Self {
        let held = Held {
            epoch: 0,
            generation: 0,
            certificates: Certificates::new(CAPACITY),
        };
        Self {
            held: Mutex::new(held),
        }
    }
}

impl Denials {
    /// Now, before a question leaves.
    pub fn moment(&self, epoch: u64) -> Moment {
        Moment {
            epoch,
            generation: self.held().generation,
            sent_us: clock::now_us(),
        }
    }

    /// The denial that a certificate gives a decision.
    pub fn covering(&self, moment: Moment, decision: &Decision<'_>) -> Option<Standing<'static>> {
        let held = self.held();
        if held.epoch != moment.epoch || held.certificates.is_empty() {
            return None;
        }
        let standing = held
            .certificates
            .covering(&print(decision), clock::now_us())?;
        let limit = decision.checks.get(standing.check)?.limit.as_ref();
        Some(Standing {
            limit: limit.to_owned().into(),
            ..standing
        })
    }

    /// Remembers a verdict of the store's if it is a denial that may be held.
    pub fn hold(&self, moment: Moment, decision: &Decision<'_>, verdict: &Verdict<'_>) {
        let Verdict::Denied(standing) = verdict else {
            return;
        };
        let asked = Asked {
            sent_us: moment.sent_us,
            answered_us: clock::now_us(),
        };
        let mut held = self.held();
        if held.generation != moment.generation || held.epoch > moment.epoch {
            return;
        }
        if held.epoch < moment.epoch {
            held.certificates.clear();
            held.epoch = moment.epoch;
        }
        held.certificates.hold(&print(decision), standing, asked);
    }

    /// Makes all of them void: a reset or a give-back has brought capacity back early.
    pub fn void(&self) {
        let mut held = self.held();
        held.generation += 1;
        held.certificates.clear();
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.held().certificates.held(clock::now_us())
    }

    /// None is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Nothing that is done under it panics.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn print(decision: &Decision<'_>) -> String {
    fingerprint(
        decision
            .checks
            .iter()
            .map(|check| (check.limit.as_ref(), check.key.as_ref(), check.cost)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_protocol::Check;

    fn decision() -> Decision<'static> {
        let check = Check {
            limit: "l".into(),
            key: "k".into(),
            cost: 1,
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
        Verdict::Denied(Standing {
            check: 0,
            limit: "l".into(),
            quota: 1,
            window_ms: 60_000,
            remaining: 0,
            reset_ms: 60_000,
            retry_after_ms: 60_000,
            hold_ms: 60_000,
            receipt: Vec::new(),
        })
    }

    #[test]
    fn a_denial_covers_the_same_decision_of_the_same_epoch_only() {
        let denials = Denials::default();
        denials.hold(denials.moment(1), &decision(), &denied());
        let held = denials.covering(denials.moment(1), &decision()).unwrap();
        assert_eq!(held.limit, "l");
        assert!(
            denials.covering(denials.moment(2), &decision()).is_none(),
            "the policy was reloaded"
        );
        let mut dearer = decision();
        dearer.checks[0].cost = 2;
        assert!(denials.covering(denials.moment(1), &dearer).is_none());
        denials.hold(denials.moment(2), &dearer, &denied());
        assert!(
            denials.covering(denials.moment(1), &decision()).is_none(),
            "a newer epoch has taken over"
        );
    }

    #[test]
    fn what_was_asked_before_a_reset_is_not_held_after_it() {
        let denials = Denials::default();
        let before = denials.moment(1);
        denials.void();
        denials.hold(before, &decision(), &denied());
        assert!(denials.is_empty());
    }
}
