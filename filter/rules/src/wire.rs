//! The question to the sidecar, and what its answer means for the request that waits.
//!
//! Nothing here knows how many requests one call asks for, or who makes the call.

use sluicegate_protocol::{
    Answer, Code, Decision, DeniedHere, MAX_CHECKS, Request, Standing, Verdict,
};

use crate::queue::Load;
use crate::reply::{self, Fields, LimitTexts, Reply};
use crate::rule::{Check, Question, Rules, WhenUnavailable};
use crate::stats::Counters;

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// It goes on to the upstream, and these headers are put into the upstream's answer.
    Continue(Fields),
    /// It goes on to the upstream without a verdict, as its rules say; the text names rule and reason, for Envoy's filter
    /// state and so for its access log: `sluicegate_unmetered{rule=per-key,reason=timeout}`.
    Unmetered(String),
    /// The client gets this.
    Answer(Reply),
}

/// Why an answer, or its absence, gave no verdict. For the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No answer in time.
    Timeout,
    /// Envoy could not bring the question to a sidecar.
    Unreachable,
    /// More requests wait than may.
    Full,
    /// The sidecar refused: another status than 200.
    Status(String),
    /// The body cannot be read, or does not fit the question.
    Body(String),
    /// The sidecar's store did not answer it.
    StoreUnavailable,
    /// The sidecar cannot make this decision: its policy and this configuration do not fit.
    Refused(String),
    /// Nobody was asked: the checks of these rules together are more than a decision may have.
    TooManyChecks {
        /// How many.
        checks: usize,
        /// Names, with "`, `" between them.
        rules: String,
    },
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timeout => f.write_str("the sidecar did not answer in time"),
            Self::Unreachable => f.write_str(
                "Envoy cannot reach the sidecar: no such cluster, no healthy endpoint or connection refused",
            ),
            Self::Full => f.write_str("too many requests wait for the sidecar"),
            Self::Status(status) => write!(f, "the sidecar answered with status {status}"),
            Self::Body(why) => write!(f, "the sidecar's answer cannot be used: {why}"),
            Self::StoreUnavailable => f.write_str("the sidecar's store did not answer in time"),
            Self::Refused(why) => write!(f, "the sidecar refused the decision: {why}"),
            Self::TooManyChecks { checks, rules } => write!(
                f,
                "one request has {checks} checks, of the rules `{rules}`, and a decision may have {MAX_CHECKS}"
            ),
        }
    }
}

impl Unusable {
    const fn counter(&self) -> usize {
        match self {
            Self::Timeout => Counters::ERROR_NO_ANSWER,
            Self::Unreachable => Counters::ERROR_UNREACHABLE,
            Self::Full => Counters::ERROR_FULL,
            Self::Status(_) => Counters::ERROR_STATUS,
            Self::Body(_) => Counters::ERROR_BODY,
            Self::StoreUnavailable => Counters::ERROR_STORE,
            Self::Refused(_) | Self::TooManyChecks { .. } => Counters::ERROR_DECISION,
        }
    }

    /// One word for the access log, of a fixed set: nothing of what was answered.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreachable => "unreachable",
            Self::Full => "full",
            Self::Status(_) => "status",
            Self::Body(_) => "body",
            Self::StoreUnavailable => "store",
            Self::Refused(_) | Self::TooManyChecks { .. } => "decision",
        }
    }
}

/// What the status of a callout's answer means. Envoy answers in the sidecar's place with a 504 when the callout times
/// out, and with a 503 when it has no endpoint to ask or cannot connect; the sidecar itself says neither on this port.
/// Without a status (`None`) the callout broke off after it had begun.
///
/// # Errors
/// Why there is no body to be read.
pub fn callout_outcome(status: Option<&[u8]>) -> Result<(), Unusable> {
    match status {
        Some(b"200") => Ok(()),
        None | Some(b"504") => Err(Unusable::Timeout),
        Some(b"503") => Err(Unusable::Unreachable),
        Some(other) => Err(Unusable::Status(
            String::from_utf8_lossy(other).into_owned(),
        )),
    }
}

impl Question {
    /// How many decisions it asks for, and so how many verdicts answer it.
    pub fn decisions(&self) -> usize {
        usize::from(!self.checks.is_empty()) + self.shadows.len()
    }
}

/// An answer, if it has just as many verdicts as were asked for: else none can be told whose it is.
///
/// # Errors
/// Why the answer is of no use.
pub fn read_answer(body: &[u8], decisions: usize) -> Result<Answer<'_>, Unusable> {
    let answer: Answer<'_> =
        serde_json::from_slice(body).map_err(|error| Unusable::Body(error.to_string()))?;
    if answer.verdicts.len() == decisions {
        Ok(answer)
    } else {
        Err(Unusable::Body(format!(
            "it has {} verdicts for {decisions} decisions",
            answer.verdicts.len()
        )))
    }
}

impl Rules {
    /// The body of `POST /v1/decide` for these questions, with what was denied here.
    pub fn question_body<'q>(
        &self,
        questions: impl IntoIterator<Item = &'q Question>,
        denied: &[DeniedHere<'_>],
    ) -> Vec<u8> {
        let mut decisions = Vec::new();
        for question in questions {
            if !question.checks.is_empty() {
                let mut decision = self.decision(&question.checks, None);
                decision.traceparent = question.traceparent.as_deref().map(Into::into);
                decisions.push(decision);
            }
            for shadow in &question.shadows {
                decisions.push(self.decision(&shadow.checks, Some(self.rule_name(shadow.rule))));
            }
        }
        // Strings and integers always can be written as JSON; an empty body would be answered by an error.
        serde_json::to_vec(&Request {
            decisions,
            denied: denied.to_vec(),
        })
        .unwrap_or_default()
    }

    /// What a question adds to a callout.
    pub fn load(&self, question: &Question) -> Load {
        /// Of a check's and of a decision's JSON, beside names and keys.
        const AROUND: usize = 64;
        let shadows = question.shadows.iter().flat_map(|shadow| &shadow.checks);
        let mut load = Load {
            decisions: question.decisions(),
            checks: 0,
            bytes: question.decisions() * 2 * AROUND,
        };
        if let Some(traceparent) = &question.traceparent {
            load.bytes += AROUND + traceparent.len();
        }
        for check in question.checks.iter().chain(shadows) {
            load.checks += 1;
            let limit = self.limit_name(check.rule, check.limit);
            load.bytes += AROUND + limit.len() + check.key.len();
        }
        load
    }

    fn decision<'a>(&'a self, checks: &'a [Check], shadow: Option<&'a str>) -> Decision<'a> {
        let checks = checks.iter().map(|check| sluicegate_protocol::Check {
            limit: self.limit_name(check.rule, check.limit).into(),
            key: check.key.as_str().into(),
            cost: check.cost,
        });
        Decision {
            checks: checks.collect(),
            peek: false,
            receipt: false,
            shadow: shadow.map(Into::into),
            traceparent: None,
        }
    }

    /// What becomes of a request, by its verdicts or by why there are none. Its second part says why there was no
    /// verdict, where there was none. `count` is called for each counter that goes up.
    pub fn conclude(
        &self,
        question: &Question,
        verdicts: Result<&[Verdict<'_>], Unusable>,
        count: &mut dyn FnMut(usize),
    ) -> (Conclusion, Option<Unusable>) {
        let mut verdicts = match verdicts {
            Ok(verdicts) => verdicts.iter(),
            Err(why) => {
                count(why.counter());
                let when = question.when_unavailable;
                return (self.without_verdict(question, when, &why, count), Some(why));
            }
        };
        let (conclusion, mut why) = if question.checks.is_empty() {
            (Conclusion::Continue(Fields::default()), None)
        } else {
            self.enforce(question, verdicts.next(), count)
        };
        for (shadow, verdict) in question.shadows.iter().zip(verdicts) {
            why = why.or(self.count_shadow(&shadow.checks, verdict, count));
        }
        (conclusion, why)
    }

    fn enforce(
        &self,
        question: &Question,
        verdict: Option<&Verdict<'_>>,
        count: &mut dyn FnMut(usize),
    ) -> (Conclusion, Option<Unusable>) {
        let why = match verdict {
            Some(Verdict::Admitted(standing)) => match decided_by(&question.checks, standing) {
                Ok(check) => {
                    count(Counters::ADMITTED);
                    return (self.admitted(question, check, standing), None);
                }
                Err(why) => why,
            },
            Some(Verdict::Denied(standing)) => match decided_by(&question.checks, standing) {
                Ok(check) => {
                    count(Counters::DENIED);
                    count(self.counters.denied(check.rule, check.limit));
                    return (self.denied(question, check, standing), None);
                }
                Err(why) => why,
            },
            Some(Verdict::Error {
                code: Code::CostOverLimit,
                ..
            }) => {
                count(Counters::REFUSED_COST);
                let reply = self.cost_over_limit(question);
                return (Conclusion::Answer(reply), None);
            }
            Some(other) => no_verdict(other),
            None => Unusable::Body("it holds no verdict".to_owned()),
        };
        // What the policy says of its limits goes before what the rules say of requests.
        let when = match verdict {
            Some(Verdict::Unavailable { then: Some(then) }) => (*then).into(),
            _ => question.when_unavailable,
        };
        count(why.counter());
        (self.without_verdict(question, when, &why, count), Some(why))
    }

    fn admitted(&self, question: &Question, check: &Check, standing: &Standing<'_>) -> Conclusion {
        // The first rule that tells admitted clients how its limits stand tells how the tightest of all stands.
        let telling = question.checks.iter().find_map(|check| {
            let style = &self.rules.get(check.rule)?.reply;
            style.on_admitted.then_some(style.headers)
        });
        let headers = telling.zip(self.texts_of(check));
        let headers = headers.map(|(style, texts)| reply::admitted(texts, standing, style));
        Conclusion::Continue(headers.unwrap_or_default())
    }

    fn denied(&self, question: &Question, check: &Check, standing: &Standing<'_>) -> Conclusion {
        match self.rules.get(check.rule).zip(self.texts_of(check)) {
            Some((rule, texts)) => Conclusion::Answer(Reply::too_many_requests(
                texts,
                standing,
                &rule.reply,
                question.grpc,
            )),
            // Every check of a question is of one of its rules.
            None => Conclusion::Answer(Reply::unavailable(None, "decision", question.grpc)),
        }
    }

    fn texts_of(&self, check: &Check) -> Option<&LimitTexts> {
        self.texts.get(check.rule)?.get(check.limit)
    }

    /// The answer does not say which check costs too much: where several could be meant, none is named.
    fn cost_over_limit(&self, question: &Question) -> Reply {
        let checks = question.checks.as_slice();
        let first = checks
            .first()
            .filter(|first| checks.iter().all(|check| check.rule == first.rule));
        let limit = first
            .filter(|first| checks.iter().all(|check| check.limit == first.limit))
            .map(|check| self.limit_name(check.rule, check.limit));
        let rule = first.map(|check| self.rule_name(check.rule));
        Reply::cost_over_limit(rule, limit, question.grpc)
    }

    fn without_verdict(
        &self,
        question: &Question,
        when: WhenUnavailable,
        why: &Unusable,
        count: &mut dyn FnMut(usize),
    ) -> Conclusion {
        // A rule's checks stand together.
        let checks = question.checks.as_slice();
        let rules = checks
            .chunk_by(|a, b| a.rule == b.rule)
            .filter_map(<[Check]>::first)
            .map(|check| check.rule);
        // Of several rules the first whose own `when_unavailable` this is; none where the policy decided against it.
        let rule = rules
            .clone()
            .filter_map(|rule| self.rules.get(rule))
            .find(|rule| rule.when_unavailable == when)
            .map(|rule| rule.name.as_str());
        match when {
            // A request that only shadow rules match never depended on a verdict.
            _ if question.checks.is_empty() => Conclusion::Continue(Fields::default()),
            WhenUnavailable::Allow => {
                count(Counters::UNAVAILABLE_ALLOWED);
                rules.for_each(|rule| count(self.counters.unavailable_allowed(rule)));
                let labels = [("rule", rule), ("reason", Some(why.reason()))];
                Conclusion::Unmetered(reply::details("unmetered", &labels))
            }
            WhenUnavailable::Deny => {
                count(Counters::UNAVAILABLE_DENIED);
                rules.for_each(|rule| count(self.counters.unavailable_denied(rule)));
                Conclusion::Answer(Reply::unavailable(rule, why.reason(), question.grpc))
            }
        }
    }

    fn count_shadow(
        &self,
        checks: &[Check],
        verdict: &Verdict<'_>,
        count: &mut dyn FnMut(usize),
    ) -> Option<Unusable> {
        let why = match verdict {
            Verdict::Admitted(standing) => match decided_by(checks, standing) {
                Ok(check) => {
                    count(self.counters.shadow_admitted(check.rule, check.limit));
                    return None;
                }
                Err(why) => why,
            },
            Verdict::Denied(standing) => match decided_by(checks, standing) {
                Ok(check) => {
                    count(self.counters.shadow_denied(check.rule, check.limit));
                    return None;
                }
                Err(why) => why,
            },
            // Whenever it came it would have been refused: for its first check's limit, since the answer does not say.
            Verdict::Error {
                code: Code::CostOverLimit,
                ..
            } => {
                if let Some(check) = checks.first() {
                    count(self.counters.shadow_denied(check.rule, check.limit));
                }
                return None;
            }
            other => no_verdict(other),
        };
        count(why.counter());
        Some(why)
    }
}

/// The check that a verdict names. Its limit's name is then taken from the configuration, not from the answer:
/// so whatever stands in an answer, no client is told anything but a name that the operator chose.
fn decided_by<'a>(checks: &'a [Check], standing: &Standing<'_>) -> Result<&'a Check, Unusable> {
    checks.get(standing.check).ok_or_else(|| {
        Unusable::Body(format!(
            "it was decided by check {} of {}",
            standing.check,
            checks.len()
        ))
    })
}

fn no_verdict(verdict: &Verdict<'_>) -> Unusable {
    match verdict {
        // It goes to the log, whatever it is.
        Verdict::Error { message, .. } => Unusable::Refused(
            message
                .chars()
                .filter(|c| !c.is_control())
                .take(300)
                .collect(),
        ),
        _ => Unusable::StoreUnavailable,
    }
}
