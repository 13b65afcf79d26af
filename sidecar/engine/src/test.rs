//! Specifications and decisions for unit tests, in a word each.

use crate::algorithm::{Algorithm, BucketSpec};
use crate::batch::{Decision, Take};

pub const fn spec(algorithm: Algorithm, quota: u64, window_us: u64) -> BucketSpec {
    BucketSpec {
        algorithm,
        quota,
        window_us,
    }
}

pub const fn sliding(precision_us: u64, leased: bool) -> Algorithm {
    Algorithm::SlidingWindow {
        precision_us,
        leased,
    }
}

/// Takes as much from each of these buckets.
pub fn decision(buckets: &[usize], cost: u64, peek: bool) -> Decision {
    let take = |&bucket: &usize| Take { bucket, cost };
    Decision {
        takes: buckets.iter().map(take).collect(),
        peek,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    }
}
