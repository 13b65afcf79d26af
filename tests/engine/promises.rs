//! Promises 3, 4 and 9 of docs/promises.md, on the script and on the embedded store, over generated traffic.
//! (All of them together are in `tests/world`, 5 is in `sidecar/tests/exact_denials.rs`, 6 in expiry.rs. These tests check the
//! answers against the promise alone, without the model.)

use super::lua::Lua;
use super::made::{self, SECOND, START_US, decision, for_all, numbered, sliding};
use proptest::prelude::*;
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Memory, Outcome};
use std::cell::{Cell, RefCell};

/// Either store, asked the same way.
pub enum Store<'a> {
    Lua(&'a RefCell<Lua>),
    Memory(RefCell<Memory>),
}

impl Store<'_> {
    pub fn decide(&self, now: u64, buckets: &[Bucket], costs: &[u64], peek: bool) -> Outcome {
        let takes: Vec<_> = costs.iter().copied().enumerate().collect();
        let batch = Batch {
            buckets: buckets.to_vec(),
            decisions: vec![decision(&takes, peek)],
        };
        match self {
            Store::Lua(lua) => lua.borrow_mut().decide(Some(now), &batch)[0],
            Store::Memory(memory) => memory.borrow_mut().decide(now, &batch)[0].unwrap(),
        }
    }

    fn remaining(&self, now: u64, bucket: &Bucket) -> u64 {
        let bucket = std::slice::from_ref(bucket);
        self.decide(now, bucket, &[0], true).remaining
    }
}

/// Runs `check` on both stores for 40 generated inputs, or more, each with new keys.
fn on_both<T: std::fmt::Debug>(
    inputs: impl Strategy<Value = (Vec<BucketSpec>, T)>,
    check: impl Fn(&Store, &[Bucket], &T),
) {
    let lua = RefCell::new(Lua::start());
    let case = Cell::new(0);
    for_all(40, 1_024, &inputs, |(specs, input)| {
        case.set(case.get() + 1);
        let buckets = numbered(case.get(), specs);
        check(&Store::Lua(&lua), &buckets, &input);
        let memory = Store::Memory(RefCell::new(Memory::default()));
        check(&memory, &buckets, &input);
        Ok(())
    });
}

pub fn spec(algorithm: Algorithm) -> impl Strategy<Value = BucketSpec> {
    (1u64..40, 20u64..60)
        .prop_map(move |(quota, seconds)| made::spec(algorithm, quota, seconds * SECOND + 7))
}

pub const PRECISE: Algorithm = sliding(3 * SECOND, false);

fn any_spec() -> impl Strategy<Value = BucketSpec> {
    prop_oneof![
        spec(Algorithm::SlidingLog),
        spec(PRECISE),
        spec(sliding(3 * SECOND, true)),
        spec(Algorithm::FixedWindow),
        spec(Algorithm::TokenBucket { burst: 9 }),
    ]
}

/// Pauses and costs, one after the other.
fn traffic() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let pause = prop_oneof![3 => Just(0u64), 6 => 0u64..4 * SECOND, 1 => 0u64..70 * SECOND];
    let cost = prop_oneof![4 => 1u64..3, 1 => 1u64..40];
    prop::collection::vec((pause, cost), 1..60)
}

/// This cost for each bucket, cut to what the bucket allows.
fn costs(buckets: &[Bucket], cost: u64) -> Vec<u64> {
    let most = buckets.iter().map(|bucket| bucket.spec.most_at_once());
    most.map(|most| cost.min(most)).collect()
}

/// Sends the traffic; returns when the last request was.
fn send(store: &Store, buckets: &[Bucket], traffic: &[(u64, u64)]) -> u64 {
    let mut now = START_US;
    for &(pause, cost) in traffic {
        now += pause;
        store.decide(now, buckets, &costs(buckets, cost), false);
    }
    now
}

#[test]
fn all_or_nothing() {
    let inputs = (prop::collection::vec(any_spec(), 2..4), traffic());
    on_both(inputs, |store, buckets, traffic| {
        let mut now = START_US;
        for &(pause, cost) in traffic {
            now += pause;
            let left = || -> Vec<u64> {
                let each = buckets.iter();
                each.map(|bucket| store.remaining(now, bucket)).collect()
            };
            let costs = costs(buckets, cost);
            let before = left();
            let admitted = store.decide(now, buckets, &costs, false).admitted;
            let after = left();
            for ((before, after), cost) in before.iter().zip(&after).zip(&costs) {
                assert_eq!(*after, before - if admitted { *cost } else { 0 });
            }
        }
    });
}

#[test]
fn true_retry_after() {
    let specs = prop::collection::vec(any_spec(), 1..4);
    let inputs = (specs, (traffic(), 1u64..40));
    on_both(inputs, |store, buckets, (traffic, cost)| {
        let now = send(store, buckets, traffic);
        promises_truly(store, now, buckets, *cost);
    });
}

/// A decision is admitted, or will be when it says, and not a microsecond earlier.
fn promises_truly(store: &Store, now: u64, buckets: &[Bucket], cost: u64) {
    let costs = costs(buckets, cost);
    let outcome = store.decide(now, buckets, &costs, false);
    if outcome.admitted {
        assert_eq!(outcome.retry_after_us, 0);
        return;
    }
    let promised = now + outcome.retry_after_us;
    let before = store.decide(promised - 1, buckets, &costs, false);
    assert!(!before.admitted, "admitted a microsecond early");
    assert_eq!(before.retry_after_us, 1);
    assert!(store.decide(promised, buckets, &costs, false).admitted);
}

#[test]
fn the_clock_may_step() {
    let specs = prop::collection::vec(any_spec(), 1..2);
    let inputs = (specs, (traffic(), 0u64..300 * SECOND));
    on_both(inputs, |store, buckets, (traffic, back)| {
        let spec = buckets[0].spec;
        let before = send(store, buckets, traffic);
        let held = spec.most_at_once() - store.remaining(before, &buckets[0]);
        let now = before - back;
        // The first request finds no more room than there was.
        let mut taken = 0;
        while store.decide(now, buckets, &[1], false).admitted {
            taken += 1;
        }
        assert!(held + taken <= spec.most_at_once(), "{held} + {taken}");
        // One window later the whole quota is available, although the clock has not reached the old time.
        let lock = match spec.algorithm {
            Algorithm::SlidingWindow {
                precision_us,
                leased,
            } => spec.window_us + precision_us * (1 + u64::from(leased)),
            Algorithm::TokenBucket { burst } => (burst * spec.window_us).div_ceil(spec.quota),
            _ => spec.window_us,
        };
        let whole = store.remaining(now + lock, &buckets[0]);
        // Except in a fixed window that follows the one that the clock stepped back to, where what was taken in it counts.
        let follows = spec.algorithm == Algorithm::FixedWindow
            && before / spec.window_us == now / spec.window_us + 1;
        let held = if follows { held } else { 0 };
        let expected = spec.most_at_once() - held;
        assert_eq!(whole, expected, "locked longer than a window");
    });
}

#[test]
fn a_small_step_back_over_an_edge_does_not_admit_a_window_twice() {
    let lua = RefCell::new(Lua::start());
    for store in [
        Store::Lua(&lua),
        Store::Memory(RefCell::new(Memory::default())),
    ] {
        let bucket = numbered(
            "edge",
            [made::spec(Algorithm::FixedWindow, 100, 10 * SECOND)],
        );
        let edge = START_US + 10 * SECOND;
        assert_eq!(edge % (10 * SECOND), 0);
        let after = edge + 10_000;
        assert!(store.decide(after, &bucket, &[90], false).admitted);
        // The clock steps back over the boundary: the earlier window only denies, with a true retry-after.
        let back = edge - 10_000;
        assert_eq!(store.remaining(back, &bucket[0]), 0);
        let small = store.decide(back, &bucket, &[10], false);
        assert_eq!((small.admitted, small.retry_after_us), (false, 10_000));
        let large = store.decide(back, &bucket, &[11], false);
        assert_eq!(large.retry_after_us, 10_000 + 10 * SECOND);
        assert_eq!(large.reset_us, 10_000 + 10 * SECOND);
        // Over the boundary again: what was admitted there still counts.
        assert!(!store.decide(after, &bucket, &[11], false).admitted);
        assert!(store.decide(after, &bucket, &[10], false).admitted);
        assert_eq!(store.remaining(after, &bucket[0]), 0);
    }
}
