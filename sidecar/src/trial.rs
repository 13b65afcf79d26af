//! Requests that nobody sent, for `explain` and `test`: the filter's rules and the sidecar's decisions, in virtual time.
//!
//! | file | for |
//! |---|---|
//! | `trial/request.rs` | a request that is described |
//! | `trial/file.rs` | the file of `sluicegate test` |

mod file;
mod request;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use sluicegate_engine::Memory;
use sluicegate_protocol::{self as protocol, Problem, read_decisions};
use sluicegate_rules::{
    Conclusion, Evaluation, Question, Reply, RuleSet, Settings, Taken, question_body,
};

use crate::decide::{Basis, Overrides, Plan};
use crate::policy::Policy;
pub use file::{Row, Test, Tests};
pub use request::{DescribedRequest, parts, settings};

/// A filter and its sidecar, with an empty store. Cached denials, leases and the queue, which change no verdict, are left out.
pub struct Trial<'p> {
    settings: Settings,
    rules: Rc<RuleSet>,
    policy: &'p Policy,
    overrides: Overrides,
    memory: Memory,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It passes, and some limit counts it.
    Admitted,
    /// It passes, and none does.
    Unlimited,
    /// It is answered with 429.
    Denied,
    /// It is answered with another status: it lacks a key, or could never be admitted.
    Refused,
}

/// The same with the particulars; what is expected may leave some away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// In one word.
    pub verdict: Verdict,
    /// The limit that denied it, or that has the least left.
    pub by: Option<String>,
    /// Of a reply; `Some(None)`: it has no such field.
    pub retry_after: Option<Option<Duration>>,
}

impl Outcome {
    /// What the filter has made of a request that this limit counts.
    fn of(reply: Option<&Reply>, by: Option<String>) -> Self {
        let verdict = match reply.map(|reply| reply.status) {
            None if by.is_some() => Verdict::Admitted,
            None => Verdict::Unlimited,
            Some(429) => Verdict::Denied,
            Some(_) => Verdict::Refused,
        };
        let retry_after = reply.map(|reply| {
            let mut headers = reply.headers.iter();
            let (_, seconds) = headers.find(|(name, _)| *name == "retry-after")?;
            seconds.parse().ok().map(Duration::from_secs)
        });
        Self {
            verdict,
            by,
            retry_after,
        }
    }

    /// Whether this has all that was expected.
    pub fn has(&self, expected: &Self) -> bool {
        self.verdict == expected.verdict
            && (expected.by.is_none() || self.by == expected.by)
            && (expected.retry_after.is_none() || self.retry_after == expected.retry_after)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Admitted => "admitted",
            Verdict::Unlimited => "unlimited",
            Verdict::Denied => "denied",
            Verdict::Refused => "refused",
        })?;
        if let Some(by) = &self.by {
            write!(f, " by `{by}`")?;
        }
        match self.retry_after {
            None => Ok(()),
            Some(None) => f.write_str(", retry_after none"),
            Some(Some(due)) => write!(f, ", retry_after {}", humantime::format_duration(due)),
        }
    }
}

impl<'p> Trial<'p> {
    /// Applies this rule set of a policy, in a filter with this pepper.
    ///
    /// # Errors
    /// The policy has no such set, or the pepper is not that of its consumers.
    pub fn new(policy: &'p Policy, set: &str, pepper: &str) -> Result<Self, String> {
        let settings = settings(pepper).map_err(|error| error.to_string())?;
        let digest = settings.hasher.pepper_digest();
        if policy.peppers().any(|other| other != digest) {
            return Err("the policy's consumers have keys that were hashed with another pepper: name the filters' in `pepper_file`".to_owned());
        }
        let rules = policy.rules.compiled(set);
        let rules = rules.ok_or_else(|| format!("the policy has no rule set `{set}`"))?;
        Ok(Self {
            settings,
            rules: Rc::new(rules),
            policy,
            overrides: Overrides::new(policy, None),
            memory: Memory::default(),
        })
    }

    /// Empties the store, for the next test.
    pub fn start_again(&mut self) {
        self.memory = Memory::default();
    }

    /// What becomes of the request of a row.
    ///
    /// # Errors
    /// Filter and sidecar do not understand each other.
    pub fn request(&mut self, row: &Row) -> Result<Outcome, Problem> {
        let (question, verdicts) = match self.rules.evaluate(&self.settings, &row.request) {
            Evaluation::Pass => return Ok(Outcome::of(None, None)),
            Evaluation::Refuse(reply) => return Ok(Outcome::of(Some(&reply), None)),
            Evaluation::NoVerdict(question, why) => (question, Err(why)),
            Evaluation::Ask(question) => {
                let verdicts = self.decide(&question, row.at_us)?;
                (question, Ok(verdicts))
            }
        };
        let by = match verdicts.iter().flatten().next() {
            _ if question.checks.is_empty() => None,
            Some(protocol::Verdict::Admitted(status) | protocol::Verdict::Denied(status)) => {
                Some(status.limit.to_string())
            }
            _ => None,
        };
        let verdicts = verdicts.as_deref().map_err(Clone::clone);
        let (conclusion, _) = question.conclude(verdicts, &|| row.at_us / 1_000_000);
        Ok(match conclusion {
            Conclusion::Answer(reply) => Outcome::of(Some(&reply), by),
            Conclusion::Continue(..) | Conclusion::Unmetered(_) => Outcome::of(None, by),
        })
    }

    /// The sidecar's verdicts.
    fn decide(
        &mut self,
        question: &Question,
        now_us: u64,
    ) -> Result<Vec<protocol::Verdict<'static>>, Problem> {
        let body = question_body([(question, &Taken::default())], &[], Vec::new(), None);
        let mut asked = read_decisions(&body)?.decisions;
        for check in asked.iter_mut().flatten().flat_map(|one| &mut one.checks) {
            self.policy.rename(&mut check.limit, &mut check.key);
        }
        let overrides = self.overrides.at(now_us / 1_000);
        let plan = Plan::new(Basis::of(self.policy, overrides), &asked);
        let outcomes = self.memory.decide(now_us, &plan.batch).into_iter();
        let outcomes: Vec<_> = outcomes.map(Result::ok).collect();
        let decided = plan.verdicts(&outcomes, &[], 0).into_iter();
        Ok(decided.map(|one| one.verdict).collect())
    }
}
