//! Units taken for one request, and the verdicts that follow.

use std::borrow::Cow;

use sluicegate_protocol::{LimitStatus, Verdict};

use crate::question::Question;

/// Units taken for enforced checks of a question. The sidecar is asked about the other checks and about all shadow rules.
#[derive(Debug, Default)]
pub struct Taken {
    /// In the order of the checks.
    pub(super) checks: Vec<TakenCheck>,
}

/// Units of one check.
#[derive(Debug)]
pub(super) struct TakenCheck {
    /// The part's number.
    pub part: u64,
    pub ends_us: u64,
    /// With the check's index. What remains is left in the part, or was left for others when it was lent.
    pub status: LimitStatus<'static>,
}

impl Taken {
    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether nothing remains to be asked for.
    pub fn covers_all(&self, question: &Question) -> bool {
        self.covers_enforced(question) && question.shadows.is_empty()
    }

    /// Whether the decision of the enforced rules is made. Then its units are spent at once, whatever comes of shadow rules.
    pub fn covers_enforced(&self, question: &Question) -> bool {
        !self.checks.is_empty() && self.checks.len() == question.checks.len()
    }

    /// Whether slots alone deny the enforced checks by these verdicts on what was asked for.
    pub fn is_denied_by_slots(&self, question: &Question, answered: &[Verdict<'_>]) -> bool {
        let is_asked = !question.checks.is_empty() && !self.covers_enforced(question);
        is_asked && answered.first().is_some_and(Verdict::is_denied_by_slots)
    }

    /// Number of decisions that are asked for.
    pub fn decisions_to_ask(&self, question: &Question) -> usize {
        question.decisions() - usize::from(self.covers_enforced(question))
    }

    /// Whether the check with this index was taken.
    pub(crate) fn has(&self, check: usize) -> bool {
        self.checks.iter().any(|one| one.status.check == check)
    }

    /// The status of the check with the fewest units left.
    pub(super) fn tightest(&self) -> Option<&LimitStatus<'static>> {
        let statuses = self.checks.iter().map(|one| &one.status);
        statuses.min_by_key(|status| status.remaining)
    }

    /// The verdicts on a question: those that were answered, with what was taken.
    pub fn verdicts<'v, 'a>(
        &self,
        question: &Question,
        answered: &'v [Verdict<'a>],
    ) -> Cow<'v, [Verdict<'a>]> {
        if self.is_empty() {
            return Cow::Borrowed(answered);
        }
        let mut answered = answered.iter().cloned();
        let mut verdicts = Vec::with_capacity(question.decisions());
        if self.covers_enforced(question) {
            verdicts.extend(self.tightest().cloned().map(Verdict::Admitted));
        } else if !question.checks.is_empty() {
            verdicts.extend(
                answered
                    .next()
                    .map(|verdict| self.complete(question, verdict)),
            );
        }
        verdicts.extend(answered);
        Cow::Owned(verdicts)
    }

    /// The verdicts if the parts of a decision with several checks ended while the others were asked for: it cannot be admitted
    /// any more. Other verdicts do not depend on the parts.
    pub fn ended<'a>(verdicts: &[Verdict<'a>]) -> Vec<Verdict<'a>> {
        let mut verdicts = verdicts.to_vec();
        if let Some(enforced @ Verdict::Admitted(_)) = verdicts.first_mut() {
            *enforced = Verdict::Unavailable { then: None };
        }
        verdicts
    }

    /// A verdict on the checks that were asked for, as one on all checks.
    fn complete<'a>(&self, question: &Question, mut verdict: Verdict<'a>) -> Verdict<'a> {
        let asked = (0..question.checks.len()).filter(|check| !self.has(*check));
        let asked: Vec<_> = asked.collect();
        // An index out of range stays out of range, and is refused later.
        let index = |check: usize| asked.get(check).copied().unwrap_or(usize::MAX);
        if let Verdict::Admitted(status) | Verdict::Denied(status) = &mut verdict {
            status.check = index(status.check);
            status
                .unknown
                .iter_mut()
                .for_each(|check| *check = index(*check));
        }
        if let Verdict::Admitted(status) = &mut verdict
            && let Some(taken) = self.tightest()
            && taken.remaining < status.remaining
        {
            let unknown = std::mem::take(&mut status.unknown);
            *status = LimitStatus {
                unknown,
                ..taken.clone()
            };
        }
        verdict
    }
}
