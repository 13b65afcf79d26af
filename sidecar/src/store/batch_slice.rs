//! A subset of a batch's decisions.

use std::sync::Arc;

use sluicegate_engine::{Batch, Decision, Outcome};

/// Decisions of a batch that go in one queue, in their order.
#[derive(Clone, Debug)]
pub struct BatchSlice {
    batch: Arc<Batch>,
    /// Their indices in the batch; `None` for all of it.
    indices: Option<Arc<[usize]>>,
}

impl From<Arc<Batch>> for BatchSlice {
    fn from(batch: Arc<Batch>) -> Self {
        Self {
            batch,
            indices: None,
        }
    }
}

impl BatchSlice {
    /// The decisions at some indices of a batch.
    pub fn of(batch: Arc<Batch>, indices: Vec<usize>) -> Self {
        Self {
            batch,
            indices: Some(indices.into()),
        }
    }

    /// Whether it is the whole batch.
    #[cfg(test)]
    pub const fn is_whole(&self) -> bool {
        self.indices.is_none()
    }

    /// The whole batch, for its buckets.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Number of decisions.
    pub fn len(&self) -> usize {
        self.indices
            .as_ref()
            .map_or(self.batch.decisions.len(), |indices| indices.len())
    }

    /// One of them.
    pub fn get(&self, number: usize) -> Option<&Decision> {
        self.batch.decisions.get(self.index(number)?)
    }

    /// Puts the outcomes at the decisions' indices in the batch.
    pub fn put_back(&self, outcomes: Vec<Option<Outcome>>, whole: &mut [Option<Outcome>]) {
        for (number, outcome) in outcomes.into_iter().enumerate() {
            if let Some(slot) = self.index(number).and_then(|index| whole.get_mut(index)) {
                *slot = outcome;
            }
        }
    }

    /// The index in the batch of one of them.
    pub fn index(&self, number: usize) -> Option<usize> {
        match &self.indices {
            None => Some(number),
            Some(indices) => indices.get(number).copied(),
        }
    }
}
