//! Some decisions of a batch.

use std::sync::Arc;

use sluicegate_engine::{Batch, Decision};

use super::settled::Settled;

/// Decisions of a batch that go in one queue, in their order.
#[derive(Clone, Debug)]
pub struct Portion {
    batch: Arc<Batch>,
    /// Their places in the batch; all of it, if nothing is said.
    members: Option<Arc<[usize]>>,
}

impl From<Arc<Batch>> for Portion {
    fn from(batch: Arc<Batch>) -> Self {
        Self {
            batch,
            members: None,
        }
    }
}

impl Portion {
    /// The decisions at some places of a batch.
    pub fn of(batch: Arc<Batch>, places: Vec<usize>) -> Self {
        Self {
            batch,
            members: Some(places.into()),
        }
    }

    /// It is all of its batch.
    #[cfg(test)]
    pub const fn is_whole(&self) -> bool {
        self.members.is_none()
    }

    /// The batch that they are of, for its buckets.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.members
            .as_ref()
            .map_or(self.batch.decisions.len(), |members| members.len())
    }

    /// One of them.
    pub fn get(&self, number: usize) -> Option<&Decision> {
        self.batch.decisions.get(self.place(number)?)
    }

    /// Puts what became of them where the batch has them.
    pub fn put_back(&self, settled: Vec<Option<Settled>>, whole: &mut [Option<Settled>]) {
        for (number, settled) in settled.into_iter().enumerate() {
            if let Some(place) = self.place(number).and_then(|place| whole.get_mut(place)) {
                *place = settled;
            }
        }
    }

    /// The place in the batch of one of them.
    pub fn place(&self, number: usize) -> Option<usize> {
        match &self.members {
            None => Some(number),
            Some(members) => members.get(number).copied(),
        }
    }
}
