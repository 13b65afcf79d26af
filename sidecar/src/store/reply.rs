//! A store's answer to a batch.

use sluicegate_engine::{Batch, Outcome};

use super::error::StoreError;

/// A store's answer to a batch: the outcome of each decision, or `None` where its node did not answer; and why.
#[derive(Debug, Default)]
pub struct StoreReply {
    /// In the order of the decisions.
    pub decisions: Vec<Option<Outcome>>,
    /// One for each call that failed.
    pub errors: Vec<StoreError>,
}

impl StoreReply {
    /// Whether the store may have carried out decisions that it did not answer.
    pub fn is_in_doubt(&self) -> bool {
        self.errors.iter().any(StoreError::is_in_doubt)
    }

    /// The answer of a store that is one node.
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

    /// The answer of a store that may refuse single decisions. Only the first error is kept.
    pub fn each<E: Into<StoreError>>(
        answers: impl IntoIterator<Item = Result<Outcome, E>>,
    ) -> Self {
        let mut reply = Self::default();
        for answer in answers {
            let outcome = match answer {
                Ok(outcome) => Some(outcome),
                Err(error) => {
                    if reply.errors.is_empty() {
                        reply.errors.push(error.into());
                    }
                    None
                }
            };
            reply.decisions.push(outcome);
        }
        reply
    }
}
