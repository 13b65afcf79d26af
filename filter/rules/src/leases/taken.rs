//! Units taken for one request, and the verdicts that follow.

use std::borrow::Cow;

use sluicegate_protocol::{LimitStatus, Verdict};

use crate::question::Question;

/// What was taken for the enforced checks of a question. The rest of them, and all shadow rules, are asked for.
#[derive(Debug, Default)]
pub struct Taken {
    /// In the order of the checks.
    pub(super) checks: Vec<TakenCheck>,
}

/// Units of one check.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenCheck {
    /// The check's index.
    pub check: usize,
    /// The part's number.
    pub part: u64,
    pub ends_us: u64,
    pub quota: u64,
    pub window_ms: u64,
    /// What is left in the part, and was left for others when it was lent.
    pub remaining: u64,
    pub reset_ms: u64,
}

impl Taken {
    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether nothing remains to be asked for.
    pub fn decides(&self, question: &Question) -> bool {
        self.is_whole(question) && question.shadows.is_empty()
    }

    /// Whether the decision of the enforced rules is made. Then its units are spent at once, whatever comes of shadow rules.
    pub fn is_whole(&self, question: &Question) -> bool {
        !self.checks.is_empty() && self.checks.len() == question.checks.len()
    }

    /// Number of decisions that are asked for.
    pub fn decisions_to_ask(&self, question: &Question) -> usize {
        question.decisions() - usize::from(self.is_whole(question))
    }

    /// Whether the check with this index was taken.
    pub(crate) fn has(&self, check: usize) -> bool {
        self.checks.iter().any(|one| one.check == check)
    }

    /// The check with the fewest units left.
    pub(super) fn tightest(&self) -> Option<&TakenCheck> {
        self.checks.iter().min_by_key(|one| one.remaining)
    }

    fn verdict(&self) -> Option<Verdict<'static>> {
        Some(Verdict::Admitted(self.tightest()?.status()))
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
        if self.is_whole(question) {
            verdicts.extend(self.verdict());
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
    fn complete<'a>(&self, question: &Question, verdict: Verdict<'a>) -> Verdict<'a> {
        let asked = (0..question.checks.len()).filter(|check| !self.has(*check));
        let asked: Vec<_> = asked.collect();
        // An index out of range stays out of range, and is refused later.
        let index = |check: usize| asked.get(check).copied().unwrap_or(usize::MAX);
        match verdict {
            Verdict::Admitted(status) => match self.tightest() {
                Some(taken) if taken.remaining < status.remaining => {
                    Verdict::Admitted(taken.status())
                }
                _ => Verdict::Admitted(LimitStatus {
                    check: index(status.check),
                    ..status
                }),
            },
            Verdict::Denied(status) => Verdict::Denied(LimitStatus {
                check: index(status.check),
                ..status
            }),
            other => other,
        }
    }
}

impl TakenCheck {
    /// The limit's name stays empty: replies take it from the configuration.
    fn status(&self) -> LimitStatus<'static> {
        LimitStatus {
            check: self.check,
            limit: "".into(),
            quota: self.quota,
            window_ms: self.window_ms,
            remaining: self.remaining,
            reset_ms: self.reset_ms,
            retry_after_ms: 0,
            hold_ms: 0,
            receipt: Vec::new(),
        }
    }
}
