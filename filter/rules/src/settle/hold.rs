//! What a request holds of one limit and key until its stream ends: units that are settled then, or slots.

use std::cell::Cell;

use sluicegate_protocol::slots_last_ms;

use crate::question::ResolvedCheck;
use crate::stats::Counters;

/// How the slots of a limit live.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots {
    /// For how long they live without a sign of the stream.
    pub expire_ms: u64,
    /// For how long, from the stream's beginning, they are renewed.
    pub longest_ms: u64,
}

impl Slots {
    /// Of limits that rules do not tell: one of a consumer, or one that counts slots only since its rules were sent. They live for as
    /// long as their receipt says, or for as short as a policy can have it, and are renewed for as long as by default.
    pub fn untold(receipt: &str) -> Self {
        Self {
            expire_ms: slots_last_ms(receipt).unwrap_or(0).max(3_000),
            longest_ms: 86_400_000,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Hold {
    pub receipt: String,
    pub checks: Vec<ResolvedCheck>,
    pub slots: Option<Slots>,
    /// The stream goes on, and the slots are renewed no more.
    is_outlived: Cell<bool>,
}

impl Hold {
    pub fn new(receipt: &str, check: &ResolvedCheck) -> Self {
        Self {
            receipt: receipt.to_owned(),
            checks: vec![check.clone()],
            slots: None,
            is_outlived: Cell::new(false),
        }
    }

    /// The check that says how it is settled, if one does.
    pub fn check(&self) -> Option<&ResolvedCheck> {
        let mut checks = self.checks.iter();
        let settled = checks.find(|check| check.reserved.is_some());
        settled.or(self.checks.first())
    }

    /// Whether its slots are renewed no more, after so long; counts it once.
    pub fn is_outlived_at(&self, lived_ms: u64, counters: &Counters) -> bool {
        let is_outlived = self.slots.is_some_and(|slots| lived_ms >= slots.longest_ms);
        if is_outlived && !self.is_outlived.replace(true) {
            counters.count(Counters::SLOTS_OUTLIVED);
        }
        is_outlived
    }
}
