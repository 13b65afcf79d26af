//! What a store says to a batch.

use sluicegate_engine::{Batch, Outcome};

use super::error::StoreError;

/// A decision that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What became of it.
    pub outcome: Outcome,
    /// When each of its takes was taken, microseconds of the clock of whatever keeps it; what a give-back has to name.
    pub taken_at_us: Vec<u64>,
}

/// What a store says to a batch: for each decision what became of it, or nothing where its part of the store
/// did not answer; and why.
#[derive(Debug, Default)]
pub struct Settlement {
    /// In the order of the decisions.
    pub decisions: Vec<Option<Settled>>,
    /// One for each call that failed.
    pub errors: Vec<StoreError>,
}

impl Settlement {
    /// The answer of a store that is in one place.
    pub fn whole(batch: &Batch, answer: Result<Vec<Outcome>, StoreError>) -> Self {
        match answer {
            Err(error) => Self {
                decisions: vec![None; batch.decisions.len()],
                errors: vec![error],
            },
            Ok(outcomes) => {
                let settle = |(outcome, decision): (Outcome, &sluicegate_engine::Decision)| {
                    Some(Settled {
                        outcome,
                        taken_at_us: vec![outcome.at_us; decision.takes.len()],
                    })
                };
                let decisions = outcomes
                    .into_iter()
                    .zip(&batch.decisions)
                    .map(settle)
                    .collect();
                Self {
                    decisions,
                    errors: Vec::new(),
                }
            }
        }
    }
}
