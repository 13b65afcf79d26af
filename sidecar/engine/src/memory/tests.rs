//! The embedded store by example; the promises are proved in tests/engine, against the model.

use super::Memory;
use crate::batch::{Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome, Take};

const SECOND: u64 = 1_000_000;

fn bucket(algorithm: Algorithm, limit: u64) -> Bucket {
    Bucket {
        key: format!("{algorithm:?}"),
        spec: BucketSpec {
            algorithm,
            limit,
            window_us: 10 * SECOND,
        },
    }
}

fn ask(memory: &mut Memory, now_us: u64, bucket: &Bucket, cost: u64) -> Outcome {
    let batch = Batch {
        buckets: vec![bucket.clone()],
        decisions: vec![Decision {
            takes: vec![Take { bucket: 0, cost }],
            peek: false,
        }],
    };
    memory.decide(now_us, &batch)[0]
}

#[test]
fn a_weighted_denial_waits_for_enough_units_not_for_the_first() {
    let mut memory = Memory::new();
    let log = bucket(Algorithm::SlidingLog, 10);
    for second in 1..=10 {
        assert!(ask(&mut memory, second * SECOND, &log, 1).admitted);
    }
    let denied = ask(&mut memory, 10 * SECOND, &log, 3);
    assert!(!denied.admitted);
    assert_eq!(denied.retry_after_us, 3 * SECOND);
    assert!(!ask(&mut memory, 13 * SECOND - 1, &log, 3).admitted);
    assert!(ask(&mut memory, 13 * SECOND, &log, 3).admitted);
}

#[test]
fn a_token_bucket_refills_evenly_from_its_burst() {
    let mut memory = Memory::new();
    let token = bucket(Algorithm::TokenBucket { burst: 2 }, 10);
    assert_eq!(ask(&mut memory, 5, &token, 1).remaining, 1);
    assert_eq!(ask(&mut memory, 5, &token, 1).remaining, 0);
    assert_eq!(ask(&mut memory, 5, &token, 1).retry_after_us, SECOND);
    assert!(ask(&mut memory, 5 + SECOND, &token, 1).admitted);
}

#[test]
fn a_give_back_after_a_reset_takes_nothing_from_others() {
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow {
            precision_us: SECOND,
        },
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 10 },
    ] {
        let mut memory = Memory::new();
        let bucket = bucket(algorithm, 10);
        let mine = ask(&mut memory, 100, &bucket, 4);
        assert!(memory.reset(&bucket.key));
        ask(&mut memory, 101, &bucket, 4);
        let returned = memory.give_back(102, &bucket, 4, mine.at_us);
        assert_eq!(returned, 0, "{algorithm:?}");
        assert_eq!(ask(&mut memory, 102, &bucket, 0).remaining, 6);
    }
}

#[test]
fn memory_returns_to_nothing_when_traffic_ends() {
    let mut memory = Memory::new();
    for index in 0..1_000u64 {
        let mut log = bucket(Algorithm::SlidingLog, 10);
        log.key = index.to_string();
        ask(&mut memory, index, &log, 1);
    }
    assert_eq!(memory.sweep(10 * SECOND, usize::MAX), 1, "only what is due");
    assert_eq!(memory.sweep(11 * SECOND, 100), 100, "no more than asked");
    while memory.sweep(11 * SECOND, 100) > 0 {}
    assert!(memory.is_empty());
}

#[test]
fn a_bucket_in_use_outlives_its_first_due_time() {
    let mut memory = Memory::new();
    let log = bucket(Algorithm::SlidingLog, 10);
    ask(&mut memory, 0, &log, 1);
    ask(&mut memory, 5 * SECOND, &log, 1);
    assert_eq!(memory.sweep(10 * SECOND, 10), 0);
    assert_eq!(ask(&mut memory, 10 * SECOND, &log, 0).remaining, 9);
    assert_eq!(memory.sweep(15 * SECOND, 10), 1);
}
