//! What a store says to a batch.

use sluicegate_engine::{Batch, Outcome};

use super::error::StoreError;

/// A decision that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What became of it.
    pub outcome: Outcome,
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
    pub fn whole<E: Into<StoreError>>(
        batch: &Batch,
        answer: Result<Vec<Result<Outcome, E>>, StoreError>,
    ) -> Self {
        match answer {
            Err(error) => Self {
                decisions: vec![None; batch.decisions.len()],
                errors: vec![error],
            },
            Ok(answers) => Self::each(answers),
        }
    }

    /// The answer of a store that may refuse single decisions. The first reason stands for all.
    pub fn each<E: Into<StoreError>>(
        answers: impl IntoIterator<Item = Result<Outcome, E>>,
    ) -> Self {
        let mut settlement = Self::default();
        for answer in answers {
            let settled = match answer {
                Ok(outcome) => Some(Settled { outcome }),
                Err(error) => {
                    if settlement.errors.is_empty() {
                        settlement.errors.push(error.into());
                    }
                    None
                }
            };
            settlement.decisions.push(settled);
        }
        settlement
    }
}
