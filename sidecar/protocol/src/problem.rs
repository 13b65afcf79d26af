//! What can be wrong with a request or with one decision in it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a kind of problem for programs; stable once released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON, or not an object with the one list that belongs there.
    MalformedJson,
    /// The body broke off, or its chunks are not framed as HTTP wants it.
    BrokenBody,
    /// The body is larger than [`crate::MAX_BODY_BYTES`].
    BodyTooLarge,
    /// More than [`crate::MAX_ENTRIES`] entries in the list.
    TooManyEntries,
    /// An entry is not of the right shape: a field is missing, unknown or of the wrong type.
    MalformedEntry,
    /// A decision without any check.
    NoChecks,
    /// More than [`crate::MAX_CHECKS`] checks in one decision.
    TooManyChecks,
    /// The request asks for more buckets than one may: its checks, each counted once for each window of its limit.
    /// The decisions before this one are made.
    RequestTooLarge,
    /// The policy has no limit of that name.
    UnknownLimit,
    /// The cost is more than the limit ever holds, so that waiting cannot help.
    CostOverLimit,
    /// An empty key.
    EmptyKey,
    /// A key of more than [`crate::MAX_KEY_BYTES`] bytes.
    KeyTooLong,
    /// One that a newer sidecar knows: only ever read, so that an older filter can read the verdicts beside it.
    #[serde(other)]
    Unknown,
}

impl Code {
    /// As it stands on the wire; also the value of a metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MalformedJson => "malformed_json",
            Self::BrokenBody => "broken_body",
            Self::BodyTooLarge => "body_too_large",
            Self::TooManyEntries => "too_many_entries",
            Self::MalformedEntry => "malformed_entry",
            Self::NoChecks => "no_checks",
            Self::TooManyChecks => "too_many_checks",
            Self::RequestTooLarge => "request_too_large",
            Self::UnknownLimit => "unknown_limit",
            Self::CostOverLimit => "cost_over_limit",
            Self::EmptyKey => "empty_key",
            Self::KeyTooLong => "key_too_long",
            Self::Unknown => "unknown",
        }
    }
}

/// A problem and what to do about it. Never holds a key: keys may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// For programs.
    pub code: Code,
    /// For people: field, value and remedy.
    pub message: String,
}

impl Problem {
    /// A problem with its message.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self {
            code,
            message: message.to_string(),
        }
    }
}
