//! Decisions and checks as they are sent, and how a sidecar reads them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Code, MAX_BODY_BYTES, MAX_CHECKS, MAX_DECISIONS, MAX_KEY_BYTES, Problem};

/// The body of `POST /v1/decide`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request<'a> {
    /// To be made in this order, each seeing what those before it took.
    #[serde(borrow)]
    pub decisions: Vec<Decision<'a>>,
}

/// Checks that are admitted together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision<'a> {
    /// At least one, at most [`MAX_CHECKS`].
    #[serde(borrow)]
    pub checks: Vec<Check<'a>>,
    /// Answer as if to take, and take nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peek: bool,
}

/// One (limit, key, cost).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// Whom it is about; 1 to [`MAX_KEY_BYTES`] bytes.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Units; 0 looks without taking.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cost: u64,
}

const fn one() -> u64 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
const fn is_one(cost: &u64) -> bool {
    *cost == 1
}

/// The same with its decisions unread, for a body in which at least one is not of the right shape.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unread<'a> {
    #[serde(borrow)]
    decisions: Vec<&'a RawValue>,
}

/// Reads a body so that one bad decision does not spoil the others.
///
/// # Errors
/// The body as a whole is of no use: too large, not JSON, no list of decisions, too many of them.
pub fn read_request(body: &[u8]) -> Result<Vec<Result<Decision<'_>, Problem>>, Problem> {
    if body.len() > MAX_BODY_BYTES {
        return Err(Problem::new(
            Code::BodyTooLarge,
            format_args!(
                "the body has {} bytes and may have {MAX_BODY_BYTES}: send fewer decisions at a time",
                body.len()
            ),
        ));
    }
    // Nearly every body is whole, so it is read in one go, and again piece by piece only if that fails.
    let decisions: Vec<_> = match serde_json::from_slice::<Request<'_>>(body) {
        Ok(request) => request.decisions.into_iter().map(check_shape).collect(),
        Err(_) => serde_json::from_slice::<Unread<'_>>(body)
            .map_err(|error| {
                Problem::new(
                    Code::MalformedJson,
                    format_args!("the body is not {{\"decisions\": [...]}}: {error}"),
                )
            })?
            .decisions
            .into_iter()
            .map(|raw| {
                serde_json::from_str(raw.get())
                    .map_err(|error| Problem::new(Code::MalformedDecision, error))
                    .and_then(check_shape)
            })
            .collect(),
    };
    if decisions.len() > MAX_DECISIONS {
        return Err(Problem::new(
            Code::TooManyDecisions,
            format_args!(
                "`decisions` has {} entries and may have {MAX_DECISIONS}: send them in several requests",
                decisions.len()
            ),
        ));
    }
    Ok(decisions)
}

/// What can be said of a decision without a policy.
fn check_shape(decision: Decision<'_>) -> Result<Decision<'_>, Problem> {
    if decision.checks.is_empty() {
        return Err(Problem::new(
            Code::NoChecks,
            "`checks` is empty: name at least one limit",
        ));
    }
    if decision.checks.len() > MAX_CHECKS {
        return Err(Problem::new(
            Code::TooManyChecks,
            format_args!(
                "`checks` has {} entries and may have {MAX_CHECKS}",
                decision.checks.len()
            ),
        ));
    }
    for (index, check) in decision.checks.iter().enumerate() {
        if check.key.is_empty() {
            return Err(Problem::new(
                Code::EmptyKey,
                format_args!(
                    "`checks[{index}].key` is empty: everyone would share it; name a subject"
                ),
            ));
        }
        if check.key.len() > MAX_KEY_BYTES {
            return Err(Problem::new(
                Code::KeyTooLong,
                format_args!(
                    "`checks[{index}].key` has {} bytes and may have {MAX_KEY_BYTES}: send a hash of it",
                    check.key.len()
                ),
            ));
        }
    }
    Ok(decision)
}
