//! Verdicts as they are sent back.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Code, Problem};

/// The body that answers `POST /v1/decide`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer<'a> {
    /// Which loaded version of the policy these verdicts are of; counted from 1 by each instance, and grows with each
    /// reload.
    pub epoch: u64,
    /// Which sidecar process this is: a number from 1 to 2^53 - 1 (so that every JSON reader keeps it whole), chosen at
    /// random when it starts. 0 of a sidecar too old to say it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub instance: u64,
    /// One for each decision, in order.
    #[serde(borrow)]
    pub verdicts: Vec<Verdict<'a>>,
}

/// Which policy of which sidecar process. Two answers with the same version are of the same limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyVersion {
    /// [`Answer::instance`].
    pub instance: u64,
    /// [`Answer::epoch`].
    pub epoch: u64,
}

impl Answer<'_> {
    /// Which policy its verdicts are of.
    pub const fn version(&self) -> PolicyVersion {
        PolicyVersion {
            instance: self.instance,
            epoch: self.epoch,
        }
    }
}

/// The answer to a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Verdict<'a> {
    /// Every check had room, and the units are taken. Tells of the window with least remaining.
    #[serde(borrow)]
    Admitted(Standing<'a>),
    /// Nothing was taken. Tells of the window that has room last.
    Denied(Standing<'a>),
    /// The store did not answer within its deadline.
    Unavailable {
        /// What the policy says of its limits for this case. Where it says nothing, the caller's own `when_unavailable`
        /// applies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<WithoutStore>,
    },
    /// The decision cannot be made as it was asked, now or later.
    Error {
        /// For programs.
        code: Code,
        /// For people.
        message: Cow<'a, str>,
    },
}

/// What is done with a request while the store is away; of several limits the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutStore {
    /// It passes, and nothing is taken.
    Allow,
    /// It is refused: 503, for it is not the client's doing.
    Deny,
}

impl From<Problem> for Verdict<'_> {
    fn from(problem: Problem) -> Self {
        Self::Error {
            code: problem.code,
            message: problem.message.into(),
        }
    }
}

/// How the window that decided stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing<'a> {
    /// Index of the check that decided.
    pub check: usize,
    /// Its limit's name.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// Units that the window allows (for a token bucket, its burst).
    pub quota: u64,
    /// The window's length, milliseconds.
    pub window_ms: u64,
    /// Units left now.
    pub remaining: u64,
    /// Milliseconds until the whole quota is there again if nobody asks; rounded up.
    pub reset_ms: u64,
    /// Milliseconds until the same decision would be admitted if nobody else asks; rounded up, 0 when admitted.
    pub retry_after_ms: u64,
    /// For how many milliseconds, from before the question was sent, the same decision may be denied without asking:
    /// capacity cannot come back sooner. 0 when admitted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_ms: u64,
    /// For each check, in their order, an opaque string by which its units can be given back; only where it was asked for.
    /// Whoever has it can return them, so it is as secret as they are worth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub receipt: Vec<String>,
}

impl Standing<'_> {
    /// The same, borrowing nothing.
    pub fn into_owned(self) -> Standing<'static> {
        Standing {
            check: self.check,
            limit: self.limit.into_owned().into(),
            quota: self.quota,
            window_ms: self.window_ms,
            remaining: self.remaining,
            reset_ms: self.reset_ms,
            retry_after_ms: self.retry_after_ms,
            hold_ms: self.hold_ms,
            receipt: self.receipt,
        }
    }
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The body that answers a list of give-backs or resets, one outcome for each, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed<T> {
    /// The outcomes.
    pub outcomes: Vec<T>,
}

/// What became of a give-back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum GivenBack {
    /// Units were returned: none if they were before, if they have come back by themselves, or if there is no such
    /// receipt of this limit and key.
    GivenBack {
        /// Units returned to the window that most were returned to.
        units: u64,
    },
    /// The store did not answer within its deadline. It may have been done; trying again does no harm, since a receipt's
    /// units are returned once.
    Unavailable,
    /// It cannot be done as it was asked.
    Error {
        /// For programs.
        code: Code,
        /// For people.
        message: String,
    },
}

/// What became of a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum WasReset {
    /// The limit is whole for the key.
    Reset {
        /// Whether it had been drawn on.
        held: bool,
    },
    /// The store did not answer within its deadline; trying again does no harm.
    Unavailable,
    /// It cannot be done as it was asked.
    Error {
        /// For programs.
        code: Code,
        /// For people.
        message: String,
    },
}
