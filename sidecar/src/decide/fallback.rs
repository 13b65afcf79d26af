//! The answer to a decision for which the store gave no outcome.

use sluicegate_engine::Outcome;
use sluicegate_protocol::WithoutStore;

use crate::policy::{Limit, WhenStoreIsDown};

/// The answer to a decision for which the store gave no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This sidecar's share of the limits decided.
    Share(Outcome),
    /// No verdict. The policy may tell the caller what to do; `None` leaves it to the caller.
    NoVerdict(Option<WithoutStore>),
}

/// The combined `when_store_is_down` of a decision's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of them allow.
    Allow,
    /// One of them denies.
    Deny,
    /// Some have a share, the others allow.
    Share,
}

impl Mode {
    /// The strictest of them decides.
    pub fn of<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Self {
        let mut mode = Self::Allow;
        for limit in limits {
            match limit.when_store_is_down {
                WhenStoreIsDown::Deny => return Self::Deny,
                WhenStoreIsDown::Share => mode = Self::Share,
                WhenStoreIsDown::Allow => {}
            }
        }
        mode
    }
}
