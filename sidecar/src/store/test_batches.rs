//! Batches for the unit tests of what puts them together and takes them apart.

use sluicegate_engine::{Batch, Bucket, Decision, Take};

/// Decisions of cost 1, each over some of these buckets by their places.
pub fn batch<T: AsRef<[usize]>>(buckets: Vec<Bucket>, decisions: &[T]) -> Batch {
    let take = |bucket: &usize| Take {
        bucket: *bucket,
        cost: 1,
    };
    let decision = |takes: &T| Decision {
        takes: takes.as_ref().iter().map(take).collect(),
        peek: false,
        receipts: Vec::new(),
    };
    Batch {
        buckets,
        decisions: decisions.iter().map(decision).collect(),
    }
}
