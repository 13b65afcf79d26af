//! Batches for the unit tests of this folder.

use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};

/// 5 units a second.
pub const SPEC: BucketSpec = BucketSpec {
    algorithm: Algorithm::SlidingLog,
    quota: 5,
    window_us: 1_000_000,
};

/// The bucket of a key.
pub fn bucket(key: impl Into<String>) -> Bucket {
    Bucket {
        key: key.into(),
        spec: SPEC,
    }
}

/// Decisions of cost 1, each over some of these buckets by their indices.
pub fn batch<T: AsRef<[usize]>>(buckets: Vec<Bucket>, decisions: &[T]) -> Batch {
    let take = |bucket: &usize| Take {
        bucket: *bucket,
        cost: 1,
    };
    let decision = |takes: &T| Decision {
        takes: takes.as_ref().iter().map(take).collect(),
        peek: false,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    };
    Batch {
        buckets,
        decisions: decisions.iter().map(decision).collect(),
    }
}
