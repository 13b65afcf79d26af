//! What decides where the store did not answer.

use sluicegate_protocol::WithoutStore;

use crate::policy::{Limit, WhenStoreIsDown};
use crate::store::Settled;

/// In place of the store's answer to a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instead {
    /// This sidecar's share of the limits decided.
    Share(Settled),
    /// No verdict, and what to do: nothing leaves it to the caller.
    Say(Option<WithoutStore>),
}

/// What the limits of a decision ask for together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All of them may be passed.
    Allow,
    /// One of them may not be passed.
    Deny,
    /// Some have a share, the others may be passed.
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
