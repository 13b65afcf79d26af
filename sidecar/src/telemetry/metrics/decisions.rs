//! The counts of the decisions of one limit, by outcome and source.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec};

use crate::telemetry::labels::{Outcome, Source};

/// Counts the decisions of one limit. A series is looked up by its labels once, when it is first counted.
#[derive(Debug)]
pub struct DecisionCounters {
    family: IntCounterVec,
    limit: String,
    /// By outcome and source, in the order of their values.
    counters: [[OnceLock<IntCounter>; Source::ALL.len()]; Outcome::ALL.len()],
}

impl DecisionCounters {
    /// Counts in `sluicegate_decisions_total` under the name of this limit.
    pub fn new(family: IntCounterVec, limit: &str) -> Self {
        Self {
            family,
            limit: limit.to_owned(),
            counters: Default::default(),
        }
    }

    /// Counts decisions. With a `count` of 0, the series exists from now on.
    pub fn count(&self, outcome: Outcome, source: Source, count: u64) {
        let series = || {
            let labels = [&self.limit, outcome.name(), source.name()];
            self.family.with_label_values(&labels)
        };
        let of_outcome = self.counters.get(outcome as usize);
        if let Some(counter) = of_outcome.and_then(|of_outcome| of_outcome.get(source as usize)) {
            counter.get_or_init(series).inc_by(count);
        }
    }
}
