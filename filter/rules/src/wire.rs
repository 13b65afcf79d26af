//! The question to the sidecar and its answer, as JSON.
//!
//! Nothing here knows how many requests one call asks for, or who makes the call.

use sluicegate_protocol::{Answer, CachedDenials, Decision, Request, Settle};

use crate::leases::Taken;
use crate::question::{Question, ResolvedCheck};
use crate::queue::Load;
use crate::verdict_error::VerdictError;

/// Reads an answer. It must have exactly one verdict for each decision; otherwise verdicts could not be assigned.
///
/// # Errors
/// Why the answer cannot be used.
pub fn read_answer(body: &[u8], decisions: usize) -> Result<Answer<'_>, VerdictError> {
    let answer: Answer<'_> =
        serde_json::from_slice(body).map_err(|error| VerdictError::Body(error.to_string()))?;
    if answer.verdicts.len() == decisions {
        Ok(answer)
    } else {
        Err(VerdictError::Body(format!(
            "it has {} verdicts for {decisions} decisions",
            answer.verdicts.len()
        )))
    }
}

/// The body of `POST /v1/decide` for what was not taken from leases of these questions, with a report of cached denials and slots
/// that are free. With `wait_ms`, only for the enforced rules: their decisions wait so long for a slot.
pub fn question_body<'q>(
    questions: impl IntoIterator<Item = (&'q Question, &'q Taken)>,
    denied: &[CachedDenials<'_>],
    settles: Vec<Settle<'_>>,
    wait_ms: Option<u64>,
) -> Vec<u8> {
    let mut decisions = Vec::new();
    for (question, taken) in questions {
        if !question.checks.is_empty() && !taken.covers_enforced(question) {
            let checks = question.checks.iter().enumerate();
            let checks = checks.filter(|(index, _)| !taken.has(*index));
            let mut decision = question.decision(checks.map(|(_, check)| check), None);
            decision.traceparent = question.traceparent.as_deref().map(Into::into);
            decisions.push(decision);
        }
        let shadows = question.shadows.iter().filter(|_| wait_ms.is_none());
        for shadow in shadows {
            let rule = question.rules.rule_name(shadow.rule);
            decisions.push(question.decision(&shadow.checks, Some(rule)));
        }
    }
    // Serializing strings and integers cannot fail; the sidecar would answer an empty body with an error.
    serde_json::to_vec(&Request {
        decisions,
        denied: denied.to_vec(),
        settles,
        wait_ms,
    })
    .unwrap_or_default()
}

impl Question {
    /// The load that it adds to a callout.
    pub fn load(&self) -> Load {
        /// Bytes of JSON around the names and keys of a check or decision.
        const AROUND: usize = 64;
        let shadows = self.shadows.iter().flat_map(|shadow| &shadow.checks);
        let mut load = Load {
            decisions: self.decisions(),
            checks: 0,
            bytes: self.decisions() * 2 * AROUND,
        };
        if let Some(traceparent) = &self.traceparent {
            load.bytes += AROUND + traceparent.len();
        }
        for check in self.checks.iter().chain(shadows) {
            load.checks += 1;
            load.bytes += AROUND + self.limit_name(check).len() + check.key.len();
        }
        load
    }

    fn decision<'a>(
        &'a self,
        checks: impl IntoIterator<Item = &'a ResolvedCheck>,
        shadow: Option<&'a str>,
    ) -> Decision<'a> {
        let checks = checks.into_iter().map(|check| {
            let settle = self.rules.settle_rule(check);
            sluicegate_protocol::Check {
                limit: self.limit_name(check).into(),
                key: check.key.as_str().into(),
                cost: check.cost,
                quota: check.quota,
                within_ms: settle.map(|settle| settle.within_ms),
                most: self.most(check),
            }
        });
        Decision {
            checks: checks.collect(),
            peek: false,
            receipt: false,
            shadow: shadow.map(Into::into),
            traceparent: None,
        }
    }
}
