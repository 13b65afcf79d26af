//! Policies that change or differ, on both stores: none locks a key for longer than it would by itself. That together they
//! admit at most what the larger of them would, `tests/world` shows.

use super::lua::Lua;
use super::made::{SECOND, START_US, bucket};
use super::promises::Store;
use sluicegate_engine::{Algorithm, Bucket, Memory};
use std::cell::RefCell;

/// A token bucket of so many units a second.
fn token(key: &str, quota: u64, burst: u64) -> Bucket {
    bucket(key, Algorithm::TokenBucket { burst }, quota, SECOND)
}

/// Takes what there is, a unit at a time at most `most` times; how many.
fn drain(store: &Store, now: u64, bucket: &Bucket, most: u64) -> u64 {
    let one = std::slice::from_ref(bucket);
    (0..most)
        .take_while(|_| store.decide(now, one, &[1], false).admitted)
        .count() as u64
}

fn left(store: &Store, now: u64, bucket: &Bucket) -> u64 {
    let one = std::slice::from_ref(bucket);
    store.decide(now, one, &[0], true).remaining
}

fn on_both(check: impl Fn(&Store)) {
    let lua = RefCell::new(Lua::start());
    check(&Store::Lua(&lua));
    check(&Store::Memory(RefCell::new(Memory::default())));
}

#[test]
fn a_lowered_rate_locks_no_key_for_longer_than_its_burst() {
    on_both(|store| {
        let (small, large) = (token("lock", 5, 5), token("lock", 100, 5_000));
        assert_eq!(drain(store, START_US, &large, 6_000), 5_000);
        assert_eq!(drain(store, START_US, &small, 1), 0);
        assert_eq!(drain(store, START_US + SECOND, &small, 9), 5);
    });
}

/// Also one of a burst that is not used for hours, while a faster rate of a smaller one is.
#[test]
fn what_a_smaller_burst_takes_locks_no_larger_one_of_a_slower_rate() {
    on_both(|store| {
        let (fast, slow) = (token("fast", 100, 5), token("fast", 10, 5_000));
        assert_eq!(drain(store, START_US, &slow, 6_000), 5_000);
        let hour = 3_600 * 10;
        // It drains from here on.
        assert_eq!(left(store, START_US, &fast), 0);
        for step in 1..=hour {
            let units = std::slice::from_ref(&fast);
            let now = START_US + step * SECOND / 10;
            assert!(store.decide(now, units, &[5], false).admitted);
        }
        let now = START_US + (3_600 + 500) * SECOND;
        assert_eq!(left(store, now, &slow), 5_000);
    });
}

/// Whose count is lost, because the clock has stepped back over two edges.
#[test]
fn a_window_is_full_for_every_quota_after_a_step_of_the_clock() {
    on_both(|store| {
        let window = |quota| bucket("step", Algorithm::FixedWindow, quota, 10 * SECOND);
        let (small, large) = (window(5), window(100));
        assert_eq!(drain(store, START_US, &large, 200), 100);
        assert_eq!(drain(store, START_US + 20 * SECOND, &small, 200), 5);
        assert_eq!(drain(store, START_US + SECOND, &small, 200), 0);
        assert_eq!(drain(store, START_US + SECOND, &large, 200), 0);
    });
}
