//! A subset of a batch's decisions.

use std::sync::Arc;

use sluicegate_engine::{Batch, Decision, Outcome};

/// Decisions of a batch that go in one queue, in their order.
#[derive(Clone, Debug)]
pub struct BatchSlice {
    batch: Arc<Batch>,
    /// Their indices in the batch.
    indices: Arc<[usize]>,
}

impl From<Arc<Batch>> for BatchSlice {
    fn from(batch: Arc<Batch>) -> Self {
        let all = 0..batch.decisions.len();
        Self::of(batch, all)
    }
}

impl BatchSlice {
    /// The decisions at some indices of a batch.
    pub fn of(batch: Arc<Batch>, indices: impl IntoIterator<Item = usize>) -> Self {
        Self {
            batch,
            indices: indices.into_iter().collect(),
        }
    }

    /// The whole batch, for its buckets.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Number of decisions.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// One of them.
    pub fn get(&self, number: usize) -> Option<&Decision> {
        self.batch.decisions.get(self.index(number)?)
    }

    /// The index in the batch of one of them.
    pub fn index(&self, number: usize) -> Option<usize> {
        self.indices.get(number).copied()
    }

    /// Puts the outcomes at the decisions' indices in the batch.
    pub fn put_back(&self, outcomes: Vec<Option<Outcome>>, whole: &mut [Option<Outcome>]) {
        for (index, outcome) in self.indices.iter().zip(outcomes) {
            if let Some(slot) = whole.get_mut(*index) {
                *slot = outcome;
            }
        }
    }
}
