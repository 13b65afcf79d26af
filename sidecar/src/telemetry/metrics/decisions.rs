//! The counts of the decisions of one limit, by outcome and source.

use std::sync::OnceLock;

use prometheus::{IntCounter, IntCounterVec};

use super::families::Families;
use crate::telemetry::history::Counts;
use crate::telemetry::labels::Outcome;
use crate::telemetry::labels::Source::{self, Certificate, Filter, Override, Share, Store};

/// The counts that a limit has from the start, at 0, so that a rate is right from the first decision on.
const FROM_THE_START: [(Outcome, &[Source]); 6] = [
    (Outcome::Admitted, &[Store, Share, Override]),
    (Outcome::Denied, DENYING),
    (Outcome::Unavailable, &[Store]),
    (Outcome::ShadowAdmitted, &[Store]),
    (Outcome::ShadowDenied, DENYING),
    (Outcome::ShadowUnavailable, &[Store]),
];
const DENYING: &[Source] = &[Store, Share, Certificate, Filter, Override];

/// Counts the decisions of one limit. A series is looked up by its labels once, when it is first counted.
#[derive(Debug)]
pub struct DecisionCounters {
    family: IntCounterVec,
    /// The limit's name; empty for decisions without a limit.
    pub limit: String,
    /// By outcome and source, in the order of their values.
    counters: [[OnceLock<IntCounter>; Source::ALL.len()]; Outcome::ALL.len()],
}

impl DecisionCounters {
    /// Counts in `sluicegate_decisions_total` under the name of this limit.
    pub fn new(families: &Families, limit: &str) -> Self {
        Self {
            family: families.decisions.clone(),
            limit: limit.to_owned(),
            counters: Default::default(),
        }
    }

    /// Makes the series that exist from the start.
    pub fn start(&self) {
        for (outcome, sources) in FROM_THE_START {
            sources
                .iter()
                .for_each(|source| self.count(outcome, *source, 0));
        }
    }

    /// The counts so far, summed over sources, of the outcomes that a client or an operator notices, and those of leases.
    pub fn counts(&self) -> Counts {
        use Outcome::{Admitted, Denied, Error, ShadowDenied, Unavailable};
        let so_far = |outcome, source| {
            let counter = self.counter(outcome, source).and_then(OnceLock::get);
            counter.map_or(0, IntCounter::get)
        };
        let all = |outcome| {
            Source::ALL
                .iter()
                .map(|source| so_far(outcome, *source))
                .sum()
        };
        let [admitted, denied, unavailable, error, shadow] =
            [Admitted, Denied, Unavailable, Error, ShadowDenied].map(all);
        let leased = so_far(Admitted, Source::Lease);
        [admitted, denied, unavailable, error, shadow, leased]
    }

    fn counter(&self, outcome: Outcome, source: Source) -> Option<&OnceLock<IntCounter>> {
        self.counters.get(outcome as usize)?.get(source as usize)
    }

    /// Counts decisions. With a `count` of 0, the series exists from now on.
    pub fn count(&self, outcome: Outcome, source: Source, count: u64) {
        let series = || {
            let labels = [&self.limit, outcome.name(), source.name()];
            self.family.with_label_values(&labels)
        };
        if let Some(counter) = self.counter(outcome, source) {
            counter.get_or_init(series).inc_by(count);
        }
    }
}
