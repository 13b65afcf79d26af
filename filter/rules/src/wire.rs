//! The question to the sidecar and what its answer means for the request that waits.

use sluicegate_protocol::{Answer, Check, Decision, Request, Standing, Verdict};

use crate::reply::{Reply, too_many_requests, unavailable};
use crate::rule::{Question, WhenUnavailable};

/// The body of `POST /v1/decide` for these questions.
pub fn question_body(questions: &[&Question]) -> Vec<u8> {
    let check = |check: &'_ crate::rule::Check| Check {
        limit: check.limit.clone().into(),
        key: check.key.clone().into(),
        cost: check.cost,
    };
    let decisions = questions
        .iter()
        .map(|question| Decision {
            checks: question.checks.iter().map(check).collect(),
            peek: false,
            receipt: false,
        })
        .collect();
    // Strings and integers always can be written as JSON; an empty body would be answered by an error.
    serde_json::to_vec(&Request { decisions }).unwrap_or_default()
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// It goes on to the upstream.
    Continue,
    /// The client gets this.
    Answer(Reply),
}

/// Why an answer, or its absence, gave no verdict. For the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No answer: the callout could not be made, timed out or broke.
    NoAnswer,
    /// The sidecar answered with another status than 200.
    Status(String),
    /// The body cannot be read, or holds too few verdicts.
    Body(String),
    /// The sidecar's store did not answer it.
    StoreUnavailable,
    /// The sidecar cannot make this decision: its policy and this configuration do not fit.
    Refused(String),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("the sidecar did not answer in time"),
            Self::Status(status) => write!(f, "the sidecar answered with status {status}"),
            Self::Body(why) => write!(f, "the sidecar's answer cannot be read: {why}"),
            Self::StoreUnavailable => f.write_str("the sidecar's store did not answer in time"),
            Self::Refused(why) => write!(f, "the sidecar refused the decision: {why}"),
        }
    }
}

/// Reads the answer to one question. Its second part says why there was no verdict, where there was none.
pub fn conclude(
    question: &Question,
    answer: Result<&[u8], Unusable>,
) -> (Conclusion, Option<Unusable>) {
    match answer.and_then(verdict) {
        Ok(None) => (Conclusion::Continue, None),
        Ok(Some(standing)) => (Conclusion::Answer(too_many_requests(&standing)), None),
        Err(why) => (
            match question.when_unavailable {
                WhenUnavailable::Allow => Conclusion::Continue,
                WhenUnavailable::Deny => Conclusion::Answer(unavailable()),
            },
            Some(why),
        ),
    }
}

/// The standing that denies, or `None` when admitted.
fn verdict(body: &[u8]) -> Result<Option<Standing<'_>>, Unusable> {
    let answer: Answer<'_> =
        serde_json::from_slice(body).map_err(|error| Unusable::Body(error.to_string()))?;
    match answer.verdicts.into_iter().next() {
        Some(Verdict::Admitted(_)) => Ok(None),
        Some(Verdict::Denied(standing)) => Ok(Some(standing)),
        Some(Verdict::Unavailable) => Err(Unusable::StoreUnavailable),
        Some(Verdict::Error { message, .. }) => Err(Unusable::Refused(message.into_owned())),
        None => Err(Unusable::Body("it holds no verdict".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(when_unavailable: WhenUnavailable) -> Question {
        let check = crate::rule::Check {
            limit: "per-key".into(),
            key: "k".into(),
            cost: 3,
        };
        Question {
            checks: vec![check],
            when_unavailable,
        }
    }

    #[test]
    fn a_question_is_the_wire_contracts_request() {
        let body = question_body(&[&question(WhenUnavailable::Allow)]);
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"{"decisions":[{"checks":[{"limit":"per-key","key":"k","cost":3}]}]}"#
        );
    }

    #[test]
    fn whatever_is_not_a_verdict_leads_to_the_rules_own_answer() {
        let bodies: [&[u8]; 9] = [
            b"",
            b"{",
            b"null",
            b"\xff",
            br#"{"epoch":1}"#,
            br#"{"epoch":1,"verdicts":[]}"#,
            br#"{"epoch":1,"verdicts":[{"outcome":"maybe"}]}"#,
            br#"{"epoch":1,"verdicts":[{"outcome":"unavailable"}]}"#,
            br#"{"epoch":1,"verdicts":[{"outcome":"error","code":"unknown_limit","message":"m"}]}"#,
        ];
        for body in bodies {
            let (conclusion, why) = conclude(&question(WhenUnavailable::Allow), Ok(body));
            assert_eq!(conclusion, Conclusion::Continue);
            assert!(why.is_some());
            let (conclusion, _) = conclude(&question(WhenUnavailable::Deny), Ok(body));
            assert!(matches!(conclusion, Conclusion::Answer(reply) if reply.status == 503));
        }
    }

    #[test]
    fn a_denial_becomes_a_429() {
        let body =
            br#"{"epoch":1,"verdicts":[{"outcome":"denied","check":0,"limit":"per-key","quota":10,
            "window_ms":60000,"remaining":2,"reset_ms":59001,"retry_after_ms":1001}]}"#;
        let (conclusion, why) = conclude(&question(WhenUnavailable::Allow), Ok(body));
        let Conclusion::Answer(reply) = conclusion else {
            panic!("{conclusion:?}")
        };
        assert_eq!((reply.status, why), (429, None));
        let header = |name| {
            reply
                .headers
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(header("retry-after"), Some("2"));
        assert_eq!(header("retry-after-ms"), Some("1001"));
        assert_eq!(header("x-ratelimit-limit"), Some("10"));
        assert_eq!(header("x-ratelimit-remaining"), Some("2"));
        assert_eq!(header("x-ratelimit-reset"), Some("60"));
    }
}
