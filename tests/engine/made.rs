//! Buckets, batches and generated cases, in a word each.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};
use std::fmt::{Debug, Display};

pub const SECOND: u64 = 1_000_000;
/// Any time long after the epoch, on the edge of every window of whole seconds up to ten.
pub const START_US: u64 = 1_790_000_000_000_000;

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

pub fn bucket(key: &str, algorithm: Algorithm, quota: u64, window_us: u64) -> Bucket {
    Bucket {
        key: key.to_owned(),
        spec: spec(algorithm, quota, window_us),
    }
}

/// Buckets with these specifications on one slot, by their number.
pub fn numbered(slot: impl Display, specs: impl IntoIterator<Item = BucketSpec>) -> Vec<Bucket> {
    let bucket = |(index, spec): (usize, _)| Bucket {
        key: format!("sg:{{{slot}}}:{index}"),
        spec,
    };
    specs.into_iter().enumerate().map(bucket).collect()
}

/// Takes by bucket and cost.
pub fn decision(takes: &[(usize, u64)], peek: bool) -> Decision {
    let take = |&(bucket, cost): &(usize, u64)| Take { bucket, cost };
    Decision {
        takes: takes.iter().map(take).collect(),
        peek,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    }
}

/// One decision over all of these buckets.
pub fn batch(buckets: &[Bucket], cost: u64, peek: bool) -> Batch {
    let takes: Vec<_> = (0..buckets.len()).map(|bucket| (bucket, cost)).collect();
    Batch {
        buckets: buckets.to_vec(),
        decisions: vec![decision(&takes, peek)],
    }
}

/// One over one of them.
pub fn one(bucket: &Bucket, cost: u64, peek: bool) -> Batch {
    batch(std::slice::from_ref(bucket), cost, peek)
}

/// So many times more generated cases than `make test` has: `SLUICEGATE_CASES`, which `make test-full` sets.
pub fn more_cases() -> u32 {
    let more = std::env::var("SLUICEGATE_CASES").unwrap_or_else(|_| "1".to_owned());
    more.parse().expect("SLUICEGATE_CASES is a number")
}

/// Checks that many generated inputs, or more; panics with a small one that fails, for which so many steps look.
pub fn for_all<T: Debug>(
    cases: u32,
    max_shrink_iters: u32,
    inputs: &impl Strategy<Value = T>,
    check: impl Fn(T) -> Result<(), TestCaseError>,
) {
    let outcome = runner(cases * more_cases(), max_shrink_iters).run(inputs, check);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Whether some generated input fails.
pub fn is_refuted<T: Debug>(
    cases: u32,
    inputs: &impl Strategy<Value = T>,
    check: impl Fn(T) -> Result<(), TestCaseError>,
) -> bool {
    runner(cases, 0).run(inputs, check).is_err()
}

fn runner(cases: u32, max_shrink_iters: u32) -> TestRunner {
    TestRunner::new(Config {
        cases,
        failure_persistence: None,
        max_shrink_iters,
        ..Config::default()
    })
}
