//! Decisions and checks on the wire, and how a sidecar parses them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::entries::Entries;
use crate::field_error::{self, FieldError};
use crate::overrides::{check_key, check_subject};
use crate::{
    Code, MAX_CHECKS, MAX_COST, MAX_DENIED_COUNT, MAX_ENTRIES, MAX_KEY_BYTES, MAX_WAIT_MS,
    MAX_WITHIN_MS, Problem, integer,
};

/// The list in the body of `POST /v1/decide`.
pub const DECISIONS: &str = "decisions";
/// The list in the body of `POST /v1/settle`.
pub const SETTLES: &str = "settles";
/// The list in the body of `POST /v1/reset`.
pub const RESETS: &str = "resets";
/// The header of a filter that reads [`crate::LimitStatus::unknown`]: without it, a decision with an unknown limit is an error.
pub const UNKNOWN_HEADER: &str = "sluicegate-unknown";
/// Stands for the whole body where an error names a field.
pub const BODY: &str = "body";

/// The body of `POST /v1/decide`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Request<'a> {
    /// The decisions, made in this order; each takes what the ones before it left.
    #[serde(borrow)]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_ENTRIES)))]
    pub decisions: Vec<Decision<'a>>,
    /// For the filter only: denials that it answered from its cache since its last report, to be counted.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<CachedDenials<'a>>,
    /// For the filter only: slots that were in use until now. They are freed before the decisions are made; the answer says nothing
    /// of them.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_ENTRIES)))]
    pub settles: Vec<Settle<'a>>,
    /// A decision that is denied by `algorithm: concurrency` alone waits up to so many milliseconds for a slot that is freed, and
    /// is then made again. The default is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_WAIT_MS)))]
    #[serde(deserialize_with = "integer::optional")]
    pub wait_ms: Option<u64>,
}

/// Denials that the filter answered from its cache. Unknown fields are ignored: if a newer filter's report were refused, every
/// request that carries it would be refused too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CachedDenials<'a> {
    /// The limit that denied.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The rule, for a shadow denial (evaluated, not enforced).
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Cow<'a, str>>,
    /// The key that was denied; absent if the filter saw more keys than it tracks. Entries with a key that no decision can
    /// have are ignored.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'a, str>>,
    /// The number of denials. Entries with more than 10^9 are ignored.
    #[cfg_attr(feature = "schema", schemars(range(max = u64::MAX)))]
    #[serde(deserialize_with = "integer::required")]
    pub count: u64,
}

/// [`Request`] with decisions that may not be parsed yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a, T> {
    decisions: Entries<T>,
    #[serde(borrow, default)]
    denied: Vec<CachedDenials<'a>>,
    #[serde(borrow, default)]
    settles: Vec<Settle<'a>>,
    #[serde(default, deserialize_with = "integer::optional")]
    wait_ms: Option<u64>,
}

/// Decisions that a caller asks for, from the body of `POST /v1/decide` or elsewhere.
#[derive(Debug)]
pub struct Read<'a> {
    /// Each is valid or has its own problem.
    pub decisions: Vec<Result<Decision<'a>, Problem>>,
    /// Cached denials to count.
    pub denied: Vec<CachedDenials<'a>>,
    /// What is settled before. Those that no receipt can have are left out.
    pub settles: Vec<Settle<'a>>,
    /// [`Request::wait_ms`].
    pub wait_ms: u64,
}

impl<'a> Read<'a> {
    /// Decisions that may not be parsed, as [`read_decisions`] validates them.
    fn of(
        decisions: impl IntoIterator<Item = Result<Decision<'a>, Problem>>,
        mut denied: Vec<CachedDenials<'a>>,
    ) -> Self {
        let can_be = |key: &Cow<'_, str>| check_key(key).is_ok();
        denied.retain(|of| of.count <= MAX_DENIED_COUNT && of.key.as_ref().is_none_or(can_be));
        let decisions = decisions.into_iter().enumerate();
        let checked = decisions.map(|(index, decision)| {
            check_shape(decision?).map_err(|problem| problem.of_entry(DECISIONS, index))
        });
        Self {
            decisions: checked.collect(),
            denied,
            settles: Vec::new(),
            wait_ms: 0,
        }
    }
}

impl<'a> Read<'a> {
    /// With what the body says beside the decisions.
    fn with(self, mut settles: Vec<Settle<'a>>, wait_ms: Option<u64>) -> Result<Self, Problem> {
        if settles.len() > MAX_ENTRIES {
            let why = format_args!("`settles`: the maximum is {MAX_ENTRIES}");
            return Err(Problem::new(Code::TooManyEntries, why).at(SETTLES));
        }
        for (index, entry) in settles.iter().enumerate() {
            check_numbers(entry).map_err(|problem| problem.of_entry(SETTLES, index))?;
        }
        settles.retain(|entry| check_settle(entry).is_ok());
        match wait_ms {
            Some(wait_ms) if !(1..=MAX_WAIT_MS).contains(&wait_ms) => {
                let why = format_args!("`wait_ms` is {wait_ms}: give 1 to {MAX_WAIT_MS}");
                Err(Problem::new(Code::MalformedEntry, why).at("wait_ms"))
            }
            _ => Ok(Self {
                settles,
                wait_ms: wait_ms.unwrap_or(0),
                ..self
            }),
        }
    }
}

impl<'a, 'd> FromIterator<&'d Decision<'a>> for Read<'a> {
    fn from_iter<T: IntoIterator<Item = &'d Decision<'a>>>(decisions: T) -> Self {
        Self::of(decisions.into_iter().cloned().map(Ok), Vec::new())
    }
}

/// Checks that are admitted together or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Decision<'a> {
    /// The limits and the units to take from each.
    #[serde(borrow)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_CHECKS)))]
    pub checks: Vec<Check<'a>>,
    /// Whether to answer as if the units were taken but take nothing. The default is `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peek: bool,
    /// Whether to answer with a receipt for each check, with which its units can be settled as long as they are held, and for ten
    /// minutes at least. The default is `false`. A check of a limit with `algorithm: concurrency` has one in any case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
    /// For a shadow decision, the name of its rule. The decision is evaluated as usual and counted separately, and the
    /// caller does not enforce the verdict.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<Cow<'a, str>>,
    /// The trace that the decision belongs to: the `traceparent` header of W3C Trace Context. Has no effect on the verdict;
    /// an invalid one is ignored, since a client may have written it.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Cow<'a, str>>,
}

impl Decision<'_> {
    /// Whether the units of this check of it will be settled.
    pub const fn settles(&self, check: &Check<'_>) -> bool {
        self.receipt || check.within_ms.is_some()
    }
}

/// Units to take from one limit for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Check<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The subject, such as a user or a job; 1 to 512 bytes of UTF-8.
    #[serde(borrow)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_KEY_BYTES)))]
    pub key: Cow<'a, str>,
    /// Units to take. The default is 1; 0 reads the state without taking anything.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_COST)))]
    #[serde(deserialize_with = "integer::required")]
    pub cost: u64,
    /// A quota for this key from a source that the caller trusts, such as a claim of a verified token. It replaces the
    /// limit's own quota if the policy accepts one for this limit and it is from 1 to the policy's `max`; otherwise it is
    /// ignored. Older sidecars refuse a check that has it: upgrade them first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "integer::optional")]
    pub quota: Option<u64>,
    /// The units will be settled within so many milliseconds: the answer has a receipt for this check. A cost of 0 is denied if the
    /// limit has nothing left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_WITHIN_MS)))]
    #[serde(deserialize_with = "integer::optional")]
    pub within_ms: Option<u64>,
    /// Take at most so many percent of the limit's quota, if the cost is more: an estimate that is larger than the quota would never
    /// be admitted. At least 1 unit is taken, unless the cost is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
    #[serde(deserialize_with = "integer::optional")]
    pub most: Option<u64>,
}

/// So many percent of a quota, in whole units, but at least one: or nothing would ever be reserved. For [`Check::most`].
pub const fn part_of(quota: u64, percent: u64) -> u64 {
    let part = quota.saturating_mul(percent) / 100;
    if part == 0 { 1 } else { part }
}

const fn one() -> u64 {
    1
}

const fn is_one(cost: &u64) -> bool {
    *cost == 1
}

/// What units that were taken have cost in fact. If the outcome is not known, send the entry again: a receipt is settled once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Settle<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key of the check.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The check's entry in the verdict's `receipt`.
    #[serde(borrow)]
    pub receipt: Cow<'a, str>,
    /// The units that were used; 0 returns all that the check took, and any number frees slots. What was taken beyond them comes back, as far as it has not
    /// come back by itself; what was used beyond what was taken is taken now, whatever the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = MAX_COST)))]
    #[serde(deserialize_with = "integer::optional")]
    pub units: Option<u64>,
    /// In place of the units: nothing is settled yet, and the receipt can be for so many milliseconds from now. Slots of a limit with
    /// `algorithm: concurrency` are renewed for the limit's `expire`, whatever the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MAX_WITHIN_MS)))]
    #[serde(deserialize_with = "integer::optional")]
    pub within_ms: Option<u64>,
}

/// A limit and key whose whole quota is to be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reset<'a> {
    /// The limit's name in the policy.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key.
    #[serde(borrow, default, skip_serializing_if = "str::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = MAX_KEY_BYTES)))]
    pub key: Cow<'a, str>,
    /// In place of the key, the first 20 hexadecimal digits of its SHA-256, if a limit denied it or it was near a limit lately.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Cow<'a, str>>,
}

/// The body of `POST /v1/settle`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Settles<'a> {
    /// The entries; each has its own outcome.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_ENTRIES)))]
    pub settles: Vec<Settle<'a>>,
}

/// The body of `POST /v1/reset`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Resets<'a> {
    /// The entries; each has its own outcome.
    #[cfg_attr(feature = "schema", schemars(length(max = MAX_ENTRIES)))]
    pub resets: Vec<Reset<'a>>,
}

/// Parses the body of `POST /v1/decide`, at most [`MAX_BODY_BYTES`](crate::MAX_BODY_BYTES). An invalid decision does not
/// affect the others.
///
/// # Errors
/// The body as a whole is invalid: not JSON, without a list of decisions, or with too many.
pub fn read_decisions(body: &[u8]) -> Result<Read<'_>, Problem> {
    // Nearly every body is valid, so it is parsed at once, and entry by entry only if that fails.
    if let Ok(read) = serde_json::from_slice::<Envelope<'_, Decision<'_>>>(body) {
        let decisions = read.decisions.bounded(DECISIONS)?.into_iter().map(Ok);
        return Read::of(decisions, read.denied).with(read.settles, read.wait_ms);
    }
    let read: Envelope<'_, &RawValue> =
        field_error::read(body).map_err(|error| malformed_body(DECISIONS, &error))?;
    let decisions = one_by_one(read.decisions, DECISIONS)?;
    Read::of(decisions, read.denied).with(read.settles, read.wait_ms)
}

/// Parses the body of `POST /v1/settle` in the same way.
///
/// # Errors
/// The body as a whole is invalid.
pub fn read_settles(body: &[u8]) -> Result<Vec<Result<Settle<'_>, Problem>>, Problem> {
    read_entries(body, SETTLES, check_settle)
}

fn check_settle(entry: &Settle<'_>) -> Result<(), Problem> {
    check_key(&entry.key)?;
    check_numbers(entry)?;
    if entry.units.is_some() == entry.within_ms.is_some() {
        let why = "`units` is what was used, or `within_ms` keeps the receipt: give exactly one of the two";
        return Err(Problem::new(Code::MalformedEntry, why).at("units"));
    }
    Ok(())
}

/// The bounds that the schema has.
fn check_numbers(entry: &Settle<'_>) -> Result<(), Problem> {
    let wrong = |field, why: String| {
        Err(Problem::new(Code::MalformedEntry, format_args!("`{field}` {why}")).at(field))
    };
    match (entry.units, entry.within_ms) {
        (Some(units), _) if units > MAX_COST => {
            wrong("units", format!("is {units}; the maximum is {MAX_COST}"))
        }
        (_, Some(within_ms)) if !(1..=MAX_WITHIN_MS).contains(&within_ms) => wrong(
            "within_ms",
            format!("is {within_ms}: give 1 to {MAX_WITHIN_MS}"),
        ),
        _ => Ok(()),
    }
}

/// Parses the body of `POST /v1/reset` in the same way.
///
/// # Errors
/// The body as a whole is invalid.
pub fn read_resets(body: &[u8]) -> Result<Vec<Result<Reset<'_>, Problem>>, Problem> {
    read_entries(body, RESETS, |entry: &Reset<'_>| match &entry.subject {
        None => check_key(&entry.key),
        Some(digits) if entry.key.is_empty() => check_subject(digits),
        Some(_) => {
            let why = "give exactly one of `key` and `subject`";
            Err(Problem::new(Code::MalformedEntry, why).at("key"))
        }
    })
}

/// Reads the list of a body that has no other field, and checks each entry.
fn read_entries<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    list: &str,
    check: impl Fn(&T) -> Result<(), Problem>,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    let malformed = |error| malformed_body(list, &error);
    let mut fields: BTreeMap<Cow<'a, str>, Entries<&'a RawValue>> =
        field_error::read(body).map_err(malformed)?;
    match (fields.remove(list), fields.pop_first()) {
        (Some(entries), None) => {
            let entries = one_by_one(entries, list)?.into_iter().enumerate();
            let checked = entries.map(|(index, entry): (_, Result<T, Problem>)| {
                let entry = entry?;
                let checked = check(&entry).map_err(|problem| problem.of_entry(list, index));
                checked.map(|()| entry)
            });
            Ok(checked.collect())
        }
        (_, Some((name, _))) => Err(malformed(FieldError::unknown(&name))),
        (None, None) => Err(malformed(FieldError::missing(list))),
    }
}

fn malformed_body(list: &str, error: &FieldError) -> Problem {
    let prefix = format!("the body is not {{\"{list}\": [...]}}: ");
    error.problem(Code::MalformedJson, &prefix, "")
}

/// Parses each entry of a list.
fn one_by_one<'a, T: Deserialize<'a>>(
    entries: Entries<&'a RawValue>,
    list: &str,
) -> Result<Vec<Result<T, Problem>>, Problem> {
    let read = |(index, raw): (usize, &'a RawValue)| {
        field_error::read(raw.get().as_bytes()).map_err(|error: FieldError| {
            error.problem(Code::MalformedEntry, "", &format!("{list}[{index}]"))
        })
    };
    let entries = entries.bounded(list)?.into_iter().enumerate();
    Ok(entries.map(read).collect())
}

/// Validates what does not depend on the policy.
fn check_shape(decision: Decision<'_>) -> Result<Decision<'_>, Problem> {
    let wrong = |code, field: &str, why: String| {
        Err(Problem::new(code, format_args!("`{field}` {why}")).at(field))
    };
    let count = decision.checks.len();
    if count == 0 {
        let why = "is empty: name at least one limit".to_owned();
        return wrong(Code::NoChecks, "checks", why);
    }
    if count > MAX_CHECKS {
        let why = format!("has {count} entries; the maximum is {MAX_CHECKS}");
        return wrong(Code::TooManyChecks, "checks", why);
    }
    for (index, check) in decision.checks.iter().enumerate() {
        let (key, bytes) = (|| format!("checks[{index}].key"), check.key.len());
        if bytes == 0 {
            let why = "is empty, which all callers would share: name a subject".to_owned();
            return wrong(Code::EmptyKey, &key(), why);
        }
        if bytes > MAX_KEY_BYTES {
            let why =
                format!("has {bytes} bytes; the maximum is {MAX_KEY_BYTES}: send a hash of it");
            return wrong(Code::KeyTooLong, &key(), why);
        }
        let within_ms = check.within_ms.unwrap_or(1);
        if !(1..=MAX_WITHIN_MS).contains(&within_ms) {
            let why = format!("is {within_ms}: give 1 to {MAX_WITHIN_MS}");
            let field = format!("checks[{index}].within_ms");
            return wrong(Code::MalformedEntry, &field, why);
        }
        let most = check.most.unwrap_or(1);
        if !(1..=100).contains(&most) {
            let why = format!("is {most}: give 1 to 100 percent");
            let field = format!("checks[{index}].most");
            return wrong(Code::MalformedEntry, &field, why);
        }
    }
    Ok(decision)
}
