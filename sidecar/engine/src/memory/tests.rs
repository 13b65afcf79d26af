//! The embedded store by example; the promises are proved in tests/engine, against the model.

use super::{Full, Memory};
use crate::algorithm::Algorithm;
use crate::batch::Batch;
use crate::hold::{ALL, Done, Guard, Held, Hold, Settlements};
use crate::key::Bucket;
use crate::test::{decision, spec};
use crate::verdict::Outcome;

const SECOND: u64 = 1_000_000;

fn bucket(algorithm: Algorithm, quota: u64) -> Bucket {
    Bucket {
        key: format!("{algorithm:?}"),
        spec: spec(algorithm, quota, 10 * SECOND),
    }
}

fn batch(buckets: &[Bucket], peek: bool, cost: u64) -> Batch {
    let all: Vec<_> = (0..buckets.len()).collect();
    Batch {
        buckets: buckets.to_vec(),
        decisions: vec![decision(&all, cost, peek)],
    }
}

fn ask(memory: &mut Memory, now_us: u64, bucket: &Bucket, cost: u64) -> Outcome {
    let batch = batch(std::slice::from_ref(bucket), false, cost);
    memory.decide(now_us, &batch)[0].unwrap()
}

#[test]
fn memory_returns_to_nothing_when_traffic_ends() {
    let mut memory = Memory::default();
    for index in 0..1_000u64 {
        let mut log = bucket(Algorithm::SlidingLog, 10);
        log.key = index.to_string();
        ask(&mut memory, index, &log, 1);
    }
    assert!(memory.sweep(10 * SECOND, usize::MAX));
    assert_eq!(memory.len(), 999, "only what is due");
    assert!(!memory.sweep(11 * SECOND, 100));
    assert_eq!(memory.len(), 899, "no more than asked");
    while !memory.sweep(11 * SECOND, 100) {}
    assert!(memory.is_empty());
}

#[test]
fn a_bucket_in_use_outlives_its_first_due_time() {
    let mut memory = Memory::default();
    let log = bucket(Algorithm::SlidingLog, 10);
    ask(&mut memory, 0, &log, 1);
    ask(&mut memory, 5 * SECOND, &log, 1);
    assert!(memory.sweep(10 * SECOND, 10));
    assert_eq!(memory.len(), 1);
    assert_eq!(ask(&mut memory, 10 * SECOND, &log, 0).remaining, 9);
    assert!(memory.sweep(15 * SECOND, 10));
    assert!(memory.is_empty());
}

fn fill(memory: &mut Memory, now_us: u64, keys: std::ops::Range<u64>, window_us: u64) -> usize {
    let decide = |index: u64| {
        let mut log = bucket(Algorithm::SlidingLog, 10);
        log.key = format!("sg:{{key-{index}}}:per-key:log:10000ms");
        log.spec.window_us = window_us;
        let batch = batch(&[log], false, 1);
        usize::from(memory.decide(now_us, &batch)[0].is_ok())
    };
    keys.map(decide).sum()
}

#[test]
fn invented_keys_at_a_high_rate_stay_bounded() {
    let mut memory = Memory::default();
    let mut most = 0;
    // 5,000 new keys in each tenth of a second, with a window of one.
    for step in 0..50u64 {
        let now_us = step * SECOND / 10;
        let keys = step * 5_000..(step + 1) * 5_000;
        fill(&mut memory, now_us, keys, SECOND);
        if step % 10 == 0 {
            while !memory.sweep(now_us, 1_000) {}
        }
        most = most.max(memory.len());
    }
    assert!(most <= 105_000, "{most} keys: a window's and a sweep's");
    while !memory.sweep(60 * SECOND, 1_000) {}
    assert_eq!(memory.len(), 0);
    assert!(memory.bytes() < 100_000, "{} bytes", memory.bytes());
}

#[test]
fn one_long_lived_key_does_not_keep_the_memory_of_others() {
    let mut memory = Memory::default();
    fill(&mut memory, 0, 0..1, 86_400 * SECOND);
    fill(&mut memory, 0, 1..200_000, SECOND);
    let full = memory.bytes();
    assert!(full > 20_000_000, "{full} bytes");
    while !memory.sweep(2 * SECOND, 1_000) {}
    assert_eq!(memory.len(), 1);
    let bytes = memory.bytes();
    assert!(bytes < full / 200, "{bytes} of {full} bytes");
}

#[test]
fn a_log_gives_back_the_memory_of_what_has_expired() {
    let mut memory = Memory::default();
    let log = bucket(Algorithm::SlidingLog, 1_000_000);
    for now_us in 0..100_000 {
        ask(&mut memory, now_us, &log, 1);
    }
    let full = memory.bytes();
    ask(&mut memory, 20 * SECOND, &log, 1);
    let bytes = memory.bytes();
    assert!(bytes < full / 100, "{bytes} of {full} bytes");
}

#[test]
fn a_full_store_refuses_what_is_new_and_goes_on_with_what_it_knows() {
    const LIMIT: usize = 1_000_000;
    let mut memory = Memory::with_limit(LIMIT);
    let admitted = fill(&mut memory, 0, 0..100_000, 10 * SECOND);
    assert!((1_000..20_000).contains(&admitted), "{admitted} keys");
    assert!(memory.bytes() < LIMIT, "{} bytes", memory.bytes());
    assert_eq!(admitted, memory.len(), "nothing was forgotten");
    // Known keys go on, and count on.
    let known = |memory: &mut Memory, now_us| fill(memory, now_us, 0..1, 10 * SECOND);
    for now_us in 1..=20 {
        assert_eq!(known(&mut memory, now_us), 1);
    }
    assert_eq!(fill(&mut memory, 20, 100_000..100_100, 10 * SECOND), 0);
    // Whoever is refused makes some room of what has ended; a sweep makes all of it.
    let refused = 100_000..100_100;
    assert!(fill(&mut memory, 11 * SECOND, refused.clone(), 10 * SECOND) > 50);
    while !memory.sweep(11 * SECOND, 1_000) {}
    assert_eq!(fill(&mut memory, 11 * SECOND, refused, 10 * SECOND), 100);
}

#[test]
fn a_refused_decision_takes_nothing_from_the_buckets_that_are_known() {
    let mut memory = Memory::with_limit(100_000);
    let known = bucket(Algorithm::SlidingLog, 10);
    ask(&mut memory, 0, &known, 1);
    fill(&mut memory, 0, 0..10_000, 10 * SECOND);
    let mut new = known.clone();
    new.key = "new".to_owned();
    let both = [known.clone(), new];
    assert_eq!(memory.decide(1, &batch(&both, false, 1)), [Err(Full)]);
    // A peek needs nothing.
    assert!(memory.decide(1, &batch(&both, true, 1))[0].is_ok());
    assert_eq!(ask(&mut memory, 1, &known, 0).remaining, 9);
}

#[test]
fn logs_of_known_keys_stay_within_the_limit_too() {
    const LIMIT: usize = 1_000_000;
    let mut memory = Memory::with_limit(LIMIT);
    let log = bucket(Algorithm::SlidingLog, 1_000_000);
    let batch = batch(&[log], false, 1);
    let admits = |now_us: &u64| memory.decide(*now_us, &batch)[0].is_ok();
    let admitted = (0..200_000).filter(admits).count();
    assert!((20_000..150_000).contains(&admitted), "{admitted}");
    assert!(memory.bytes() < LIMIT, "{} bytes", memory.bytes());
}

#[test]
fn a_log_that_is_repaired_after_a_clock_step_leaves_nothing_behind() {
    let mut memory = Memory::default();
    let log = bucket(Algorithm::SlidingLog, 1_000_000);
    for n in 0..2_000 {
        ask(&mut memory, 1_000 * SECOND + n, &log, 1);
    }
    let before = memory.bytes();
    // The clock steps back by 500 s: the entries get the stamp of now, and are held for one window from now on.
    assert_eq!(ask(&mut memory, 500 * SECOND, &log, 0).remaining, 998_000);
    let bytes = memory.bytes();
    assert!(bytes < before, "{bytes} of {before} bytes");
    assert!(memory.sweep(510 * SECOND - 1, usize::MAX));
    assert_eq!(memory.len(), 1);
    // Its end was later when it was added; it must not stay until then.
    assert!(memory.sweep(510 * SECOND, usize::MAX));
    assert_eq!(memory.bytes(), Memory::default().bytes());
}

#[test]
fn units_that_a_larger_quota_let_in_are_given_back_by_a_smaller_one() {
    const YEAR: u64 = 366 * 86_400 * SECOND;
    let mut memory = Memory::default();
    let token = |quota, burst| Bucket {
        key: "token".to_owned(),
        spec: spec(Algorithm::TokenBucket { burst }, quota, YEAR),
    };
    let (large, small) = (token(1_000_000, 1_000_000), token(7, 100));
    assert_eq!((large.spec.check(), small.spec.check()), (Ok(()), Ok(())));
    let hold = Hold {
        key: "hold".to_owned(),
        units: 1_000_000,
        lasts_us: YEAR,
        is_receipt: false,
        of: vec![Held::of(&large)],
    };
    let mut batch = batch(&[large], false, 1_000_000);
    batch.decisions[0].holds.push(hold);
    assert!(memory.decide(SECOND, &batch)[0].unwrap().admitted);
    let mut settlements = Settlements::default();
    let guard = Guard::Spend {
        hold: "hold".to_owned(),
        units: ALL,
        keeps: 0,
    };
    settlements.return_to(guard, [small.clone()]);
    // Counted by the larger quota's rate, which is the one that is stored.
    assert_eq!(
        memory.settle(SECOND + 1, &settlements),
        [Done::Returned(1_000_000)]
    );
    assert_eq!(ask(&mut memory, SECOND + 1, &small, 0).remaining, 100);
}
