//! Decisions and checks as they are sent, and how a sidecar reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{Code, MAX_BODY_BYTES, MAX_CHECKS, MAX_ENTRIES, MAX_KEY_BYTES, Problem};

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
    /// Answer with a receipt, by which the units can be given back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
    /// The name of the rule that asks, where whoever asks will not heed the verdict: it wants to know what would have
    /// been. Decided like any other, and counted apart.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Cow<'a, str>>,
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

const fn is_one(cost: &u64) -> bool {
    *cost == 1
}

/// Units to be returned that an admitted decision took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GiveBack<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key that the check named.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Units; no more than the check took.
    pub cost: u64,
    /// What the verdict's receipt says for the check: microseconds of the store's clock.
    pub taken_at_us: u64,
}

/// A limit to be made whole for a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reset<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
}

/// Reads the body of `POST /v1/decide` so that one bad decision does not spoil the others.
///
/// # Errors
/// The body as a whole is of no use: too large, not JSON, no list of decisions, too many of them.
pub fn read_decisions(body: &[u8]) -> Result<Vec<Result<Decision<'_>, Problem>>, Problem> {
    let decisions = read_list(body, "decisions")?;
    Ok(decisions
        .into_iter()
        .map(|decision| decision.and_then(check_shape))
        .collect())
}

/// Reads the body of `POST /v1/give-back`, likewise.
///
/// # Errors
/// The body as a whole is of no use.
pub fn read_give_backs(body: &[u8]) -> Result<Vec<Result<GiveBack<'_>, Problem>>, Problem> {
    read_list(body, "give_backs")
}

/// Reads the body of `POST /v1/reset`, likewise.
///
/// # Errors
/// The body as a whole is of no use.
pub fn read_resets(body: &[u8]) -> Result<Vec<Result<Reset<'_>, Problem>>, Problem> {
    read_list(body, "resets")
}

/// An object of one field, which is a list.
fn read_list<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    field: &str,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    if body.len() > MAX_BODY_BYTES {
        return Err(Problem::new(
            Code::BodyTooLarge,
            format_args!(
                "the body has {} bytes and may have {MAX_BODY_BYTES}: send fewer entries at a time",
                body.len()
            ),
        ));
    }
    // Nearly every body is whole, so it is read in one go, and again piece by piece only if that fails.
    let list: Vec<_> = match only_field::<Vec<T>>(body, field) {
        Ok(list) => list.into_iter().map(Ok).collect(),
        Err(_) => only_field::<Vec<&RawValue>>(body, field)
            .map_err(|why| {
                Problem::new(
                    Code::MalformedJson,
                    format_args!("the body is not {{\"{field}\": [...]}}: {why}"),
                )
            })?
            .into_iter()
            .map(|raw| {
                serde_json::from_str(raw.get())
                    .map_err(|error| Problem::new(Code::MalformedEntry, error))
            })
            .collect(),
    };
    if list.len() > MAX_ENTRIES {
        return Err(Problem::new(
            Code::TooManyEntries,
            format_args!(
                "`{field}` has {} entries and may have {MAX_ENTRIES}: send several requests",
                list.len()
            ),
        ));
    }
    Ok(list)
}

fn only_field<'a, T: Deserialize<'a>>(body: &'a [u8], field: &str) -> Result<T, String> {
    let mut fields: BTreeMap<Cow<'a, str>, T> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match fields.pop_first() {
        Some((name, value)) if name == field && fields.is_empty() => Ok(value),
        Some((name, _)) => Err(format!("it has a field `{name}`")),
        None => Err("it is empty".to_owned()),
    }
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
