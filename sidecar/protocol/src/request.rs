//! Decisions and checks as they are sent, and how a sidecar reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::entries::Entries;
use crate::fault::{self, Fault};
use crate::{
    Code, MAX_BODY_BYTES, MAX_CHECKS, MAX_DENIED_COUNT, MAX_ENTRIES, MAX_KEY_BYTES, Problem,
};

/// The body of `POST /v1/decide`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request<'a> {
    /// To be made in this order, each seeing what those before it took.
    #[serde(borrow)]
    pub decisions: Vec<Decision<'a>>,
    /// What the filter has denied by certificates since it last said so, and wants counted.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<DeniedHere<'a>>,
}

/// Denials that the filter gave without asking. What a newer filter may say more of them is passed over: a report that
/// were refused would be refused again with every question that it goes with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedHere<'a> {
    /// The limit that denied.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The rule, where nobody heeded it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Cow<'a, str>>,
    /// Whom they were about; nobody in particular where the filter does not tell so many keys apart.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'a, str>>,
    /// How many; an entry of more than [`MAX_DENIED_COUNT`] is passed over.
    pub count: u64,
}

/// [`Request`] with decisions that may not have been read yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a, T> {
    decisions: Entries<T>,
    #[serde(borrow, default)]
    denied: Vec<DeniedHere<'a>>,
}

/// What stands in the body of `POST /v1/decide`.
#[derive(Debug)]
pub struct Read<'a> {
    /// Each good or with its own problem.
    pub decisions: Vec<Result<Decision<'a>, Problem>>,
    /// To be counted.
    pub denied: Vec<DeniedHere<'a>>,
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
    /// The trace that it belongs to, as W3C Trace Context writes it: what the request's `traceparent` says. Decides
    /// nothing; one that cannot be read is passed over, since a client may have written it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Cow<'a, str>>,
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

/// Units to be returned that an admitted decision took. It may be sent again when it is not known to have been done: a
/// receipt's units are returned once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GiveBack<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key that the check named.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// What the verdict's `receipt` has for the check.
    #[serde(borrow)]
    pub receipt: Cow<'a, str>,
    /// Units; all that the check took and that are not returned yet, if nothing is said or if it is more than that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<u64>,
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
pub fn read_decisions(body: &[u8]) -> Result<Read<'_>, Problem> {
    let (decisions, mut denied) = read_list(
        body,
        "decisions",
        |body| {
            let read: Envelope<'_, Decision<'_>> = serde_json::from_slice(body).ok()?;
            Some((read.decisions, read.denied))
        },
        |body| {
            let read: Envelope<'_, &RawValue> =
                fault::read(body).map_err(|fault| fault.within(""))?;
            Ok((read.decisions, read.denied))
        },
    )?;
    denied.retain(|denied| denied.count <= MAX_DENIED_COUNT);
    let decisions = decisions
        .into_iter()
        .map(|decision| decision.and_then(check_shape));
    Ok(Read {
        decisions: decisions.collect(),
        denied,
    })
}

/// Reads the body of `POST /v1/give-back`, likewise.
///
/// # Errors
/// The body as a whole is of no use.
pub fn read_give_backs(body: &[u8]) -> Result<Vec<Result<GiveBack<'_>, Problem>>, Problem> {
    let field = "give_backs";
    Ok(read_list(
        body,
        field,
        |body| only_field(body, field).ok(),
        |body| only_field(body, field),
    )?
    .0)
}

/// Reads the body of `POST /v1/reset`, likewise.
///
/// # Errors
/// The body as a whole is of no use.
pub fn read_resets(body: &[u8]) -> Result<Vec<Result<Reset<'_>, Problem>>, Problem> {
    let field = "resets";
    Ok(read_list(
        body,
        field,
        |body| only_field(body, field).ok(),
        |body| only_field(body, field),
    )?
    .0)
}

/// A list in a body, which `whole` reads with its entries, and `raw` without; and what else stands beside it.
fn read_list<'a, T: Deserialize<'a>, E>(
    body: &'a [u8],
    field: &str,
    whole: impl Fn(&'a [u8]) -> Option<(Entries<T>, E)>,
    raw: impl Fn(&'a [u8]) -> Result<(Entries<&'a RawValue>, E), String>,
) -> Result<(Vec<Result<T, Problem>>, E), Problem> {
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
    match whole(body) {
        Some((list, beside)) => {
            let list = bounded(list, field)?;
            Ok((list.into_iter().map(Ok).collect(), beside))
        }
        None => {
            let (list, beside) = raw(body).map_err(|why| {
                Problem::new(
                    Code::MalformedJson,
                    format_args!("the body is not {{\"{field}\": [...]}}: {why}"),
                )
            })?;
            let read = |(index, raw): (usize, &'a RawValue)| {
                fault::read(raw.get().as_bytes()).map_err(|fault: Fault| {
                    let entry = format!("{field}[{index}]");
                    Problem::new(Code::MalformedEntry, fault.within(&entry))
                })
            };
            let list = bounded(list, field)?;
            Ok((list.into_iter().enumerate().map(read).collect(), beside))
        }
    }
}

fn bounded<T>(entries: Entries<T>, field: &str) -> Result<Vec<T>, Problem> {
    match entries {
        Entries::Whole(entries) => Ok(entries),
        Entries::TooMany(count) => Err(Problem::new(
            Code::TooManyEntries,
            format_args!(
                "`{field}` has {count} entries and may have {MAX_ENTRIES}: send several requests"
            ),
        )),
    }
}

/// An object of one field, and nothing beside it.
fn only_field<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    field: &str,
) -> Result<(Entries<T>, ()), String> {
    let mut fields: BTreeMap<Cow<'a, str>, Entries<T>> = serde_json::from_slice(body)
        .or_else(|_| fault::read(body))
        .map_err(|fault: Fault| fault.within(""))?;
    match fields.pop_first() {
        Some((name, list)) if name == field && fields.is_empty() => Ok((list, ())),
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
