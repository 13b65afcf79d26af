//! The answers: verdicts and outcomes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::integer::is_zero;
use crate::{LeasePart, Problem};

/// The body that answers `POST /v1/decide`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Answer<'a> {
    /// The version of the policy that decided. Each instance counts from 1 and adds one with each reload of the
    /// policy, each change of overrides and each step back of the store's clock.
    pub epoch: u64,
    /// The sidecar process that answered: a random number from 1 to 2^53 - 1 (so that every JSON reader keeps it whole),
    /// drawn when the process starts. 0 or absent when the sidecar is too old to send it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub instance: u64,
    /// One verdict for each decision, in the same order.
    #[serde(borrow)]
    pub verdicts: Vec<Verdict<'a>>,
    /// For the filter only: units that it may spend without asking.
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<LeasePart<'a>>,
    /// For the filter only: the digest of the rules in force, if the policy has any.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Cow<'a, str>>,
    /// For the filter only: the first digits of earlier digests, separated by spaces. All limits of their rules are decided.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Cow<'a, str>>,
    /// For the filter only: identifies the limits, consumers and overrides that decided, in all sidecars alike.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Cow<'a, str>>,
}

/// A policy version of a sidecar process. Answers with the same version apply the same limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyVersion {
    /// [`Answer::instance`].
    pub instance: u64,
    /// [`Answer::epoch`].
    pub epoch: u64,
}

impl Answer<'_> {
    /// The policy version of the verdicts.
    pub const fn version(&self) -> PolicyVersion {
        PolicyVersion {
            instance: self.instance,
            epoch: self.epoch,
        }
    }
}

/// The answer to a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Verdict<'a> {
    /// Every check was admitted, and the units are taken. Describes the window with the fewest units left.
    #[serde(borrow)]
    Admitted(LimitStatus<'a>),
    /// Nothing was taken. Describes the window that admits the decision last.
    Denied(LimitStatus<'a>),
    /// The store did not answer within its deadline.
    Unavailable {
        /// What to do according to the policy's `when_store_is_down`. If absent, the caller's own setting
        /// (`when_unavailable` of a filter's rule) applies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<WithoutStore>,
    },
    /// The decision is invalid; trying again does not help.
    Error(Problem),
}

/// What to do with a request while the store is unavailable. The strictest of several limits applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WithoutStore {
    /// Let it pass; nothing is taken.
    Allow,
    /// Refuse it with 503, since the client has done nothing wrong.
    Deny,
}

impl Verdict<'_> {
    /// Whether it is denied because all slots are in use, and nothing else denies it. Of a block, `reset_ms` is its end, or there is
    /// none.
    pub fn is_denied_by_slots(&self) -> bool {
        matches!(self, Self::Denied(status)
            if status.at_once && !status.until_changed && status.reset_ms == 0)
    }

    /// A copy that owns its data.
    pub fn into_owned(self) -> Verdict<'static> {
        match self {
            Self::Admitted(status) => Verdict::Admitted(status.into_owned()),
            Self::Denied(status) => Verdict::Denied(status.into_owned()),
            Self::Unavailable { then } => Verdict::Unavailable { then },
            Self::Error(problem) => Verdict::Error(problem),
        }
    }
}

/// The state of the window that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitStatus<'a> {
    /// Index of the check that decided, in the decision's `checks`.
    pub check: usize,
    /// The name of that check's limit.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The window's quota in units (for a token bucket, its burst). With 0, nothing is allowed at all.
    pub quota: u64,
    /// The window's length in milliseconds.
    pub window_ms: u64,
    /// Units left now.
    pub remaining: u64,
    /// By how many units more than the quota are taken: by a settle, while the store was away, or before the quota was lowered.
    /// Absent or 0 otherwise, and where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over: u64,
    /// Milliseconds until the whole quota is available again if nothing more is taken, rounded up.
    pub reset_ms: u64,
    /// Milliseconds until the same decision would be admitted if nothing else is taken, rounded up. 0 when admitted.
    pub retry_after_ms: u64,
    /// The decision is denied until an operator changes something, so that there is no such time: `retry_after_ms` says when to ask
    /// again. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_changed: bool,
    /// The limit has `algorithm: concurrency`: its quota is what may be in use at once, and `window_ms` how long a slot lives without
    /// a renewal. A denial's `retry_after_ms` is an estimate from how long slots were in use so far. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_once: bool,
    /// What the window is, if it is one of a calendar: its length changes. Absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calendar: Option<CalendarUnit>,
    /// For how many milliseconds the caller may cache this denial, counted from before it sent the request: no capacity
    /// becomes available sooner. 0 or absent when admitted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_ms: u64,
    /// For the filter only: the indices of checks whose limits the policy does not have. They took no part in the verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<usize>,
    /// For each check, in order, an opaque string for settling its units, empty for a check that has none; present only if a
    /// receipt was asked for. Checks of the same limit and key have one string together, for the units of all of them. Anyone who
    /// has it can return the units, so keep it secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipt: Vec<String>,
}

/// A calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// From the first day to the last.
    Month,
}

impl LimitStatus<'_> {
    /// Whether it denies because its limit allows nothing at all: then clients are told no time.
    pub const fn allows_nothing(&self) -> bool {
        self.until_changed && self.quota == 0
    }

    /// Whether it is known when units are available again: of slots nobody knows it.
    pub const fn has_reset(&self) -> bool {
        !(self.at_once || self.allows_nothing())
    }

    /// A copy that owns its data.
    pub fn into_owned(self) -> LimitStatus<'static> {
        LimitStatus {
            check: self.check,
            limit: self.limit.into_owned().into(),
            quota: self.quota,
            window_ms: self.window_ms,
            remaining: self.remaining,
            over: self.over,
            reset_ms: self.reset_ms,
            retry_after_ms: self.retry_after_ms,
            until_changed: self.until_changed,
            at_once: self.at_once,
            calendar: self.calendar,
            hold_ms: self.hold_ms,
            unknown: self.unknown,
            receipt: self.receipt,
        }
    }
}

/// The body that answers a list of settles or resets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "{T}List")
)]
pub struct Listed<T> {
    /// One outcome for each entry, in the same order.
    pub outcomes: Vec<T>,
}

/// The outcome of a settle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Settled {
    /// As much was used as was taken, or less.
    Returned {
        /// Units that came back. For a limit with several windows, the largest number that came back to one of them.
        units: u64,
    },
    /// More was used than was taken.
    Charged {
        /// Units that were taken now.
        units: u64,
    },
    /// It can be settled for longer.
    Renewed,
    /// Nothing was changed: the receipt was settled before, or its time is over, or this limit and key have no such receipt. What
    /// it stood for stays taken.
    Unknown,
    /// The store did not answer within its deadline. The entry may be settled; sending it again is safe.
    Unavailable,
    /// The entry is invalid.
    Error(Problem),
}

/// The outcome of a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum WasReset {
    /// The whole quota of the limit is available again for the key.
    Reset {
        /// Whether any units were used before.
        held: bool,
        /// The units are slots: what holds them goes on, and counts again when it renews them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        at_once: bool,
    },
    /// The store did not answer within its deadline. Sending the entry again is safe.
    Unavailable,
    /// The entry is invalid.
    Error(Problem),
}
