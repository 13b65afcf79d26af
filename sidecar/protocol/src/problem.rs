//! Errors of a request or of one of its entries.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The media type of [`ProblemDetails`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// `Retry-After` of an answer with status 503, in seconds: a sidecar uses its store within half a second of its return, and
/// a longer time would keep clients away although they would be served.
pub const UNAVAILABLE_RETRY_S: u64 = 1;

/// Longest field name that an error repeats, in characters: a client may have chosen it.
const MAX_FIELD_CHARS: usize = 120;

/// The kind of a problem, for programs; stable once released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON, or not an object with the expected fields.
    MalformedJson,
    /// The body is incomplete, or its chunks are malformed.
    BrokenBody,
    /// The body is larger than 1 MiB.
    BodyTooLarge,
    /// The list has more than 1,024 entries.
    TooManyEntries,
    /// An entry has the wrong shape: a field is missing, unknown or of the wrong type.
    MalformedEntry,
    /// A decision has no checks.
    NoChecks,
    /// A decision has more than 32 checks.
    TooManyChecks,
    /// The request asks for too many buckets: its checks, each counted once for each window of its limit. The decisions
    /// before this one are made.
    RequestTooLarge,
    /// The policy has no limit of this name.
    UnknownLimit,
    /// The cost is more than the limit's quota, so waiting does not help.
    CostOverLimit,
    /// The key is empty.
    EmptyKey,
    /// The key has more than 512 bytes.
    KeyTooLong,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The request has no Host header, more than one, or an invalid one.
    BadHost,
    /// The request's Host is not one of the admin port's names.
    WrongHost,
    /// A web page that may not call this port sent the request.
    FromWebPage,
    /// The request's `content-type` is not JSON.
    NotJson,
    /// A query parameter has an invalid value.
    BadQuery,
    /// The request requires the admin token.
    TokenRequired,
    /// The port has no such path.
    NotFound,
    /// The path does not support this method; the `allow` header lists the supported methods.
    MethodNotAllowed,
    /// The decision was denied; only with `?denied=429`.
    Denied,
    /// The store did not answer within its deadline; only with `?denied=429`.
    Unavailable,
    /// The sidecar is not ready.
    NotReady,
    /// The sidecar failed; its log has the cause.
    Internal,
    /// The store holds the maximum number or size of overrides.
    TooManyOverrides,
    /// The store did not confirm a change, which it may have made, or its overrides have never been read.
    StoreUnavailable,
    /// A code that this version does not know. Never sent: it lets an older filter read the other verdicts.
    #[serde(other)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    Unknown,
}

/// A problem and what to do about it. Never holds a key: keys may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{message}")]
pub struct Problem {
    /// For programs.
    pub code: Code,
    /// For people: field, value and remedy.
    pub message: Cow<'static, str>,
    /// The field of the request that is wrong, such as `decisions[0].checks[1].cost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Cow<'static, str>>,
}

impl Problem {
    /// A problem with its message.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string().into(),
            field: None,
        }
    }

    /// Sets the field.
    #[must_use]
    pub fn at(mut self, field: impl fmt::Display) -> Self {
        let field = field.to_string();
        self.field = Some(field.chars().take(MAX_FIELD_CHARS).collect());
        self
    }

    /// Prefixes the field with an entry of a list; without a field, the entry becomes the field.
    #[must_use]
    pub fn of_entry(self, list: &str, index: usize) -> Self {
        let field = match &self.field {
            Some(field) if field.starts_with('[') => format!("{list}[{index}]{field}"),
            Some(field) => format!("{list}[{index}].{field}"),
            None => format!("{list}[{index}]"),
        };
        self.at(field)
    }
}

/// The body of every error: a problem detail (RFC 9457) with a code and, where there is one, the field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProblemDetails<'a> {
    /// `about:blank`: the status and `code` name the kind of problem.
    pub r#type: Cow<'a, str>,
    /// The name of the status.
    pub title: Cow<'a, str>,
    /// The HTTP status.
    pub status: u16,
    /// For people: what is wrong, and what to do about it.
    pub detail: Cow<'a, str>,
    /// For programs.
    pub code: Code,
    /// The part of the request that is wrong: a path into the body such as `decisions[0].checks[1].cost`, `body` for all of
    /// it, `header.NAME`, `query.NAME`, `path` or `method`. Absent where the request is not at fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Cow<'a, str>>,
}
