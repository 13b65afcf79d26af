//! Tests of the leases of one key.

use super::*;
use crate::test::{sliding, spec};

const TERMS: LeaseTerms = LeaseTerms {
    longest_us: 100_000,
    most: 400,
    from_per_s: 50,
};
const WINDOWS: [BucketSpec; 1] = [spec(sliding(1_000_000, true), 600_000, 60_000_000)];
/// A second, by the pool's clock and by the store's.
const START: u64 = 1_000_001;

/// A pool that has been asked for 4,000 units a second until [`START`].
fn hot() -> Pool<&'static str> {
    let mut pool = Pool::new(TERMS);
    for ask in 0..4_000 {
        assert!(pool.take(START - 1_000_000 + ask * 250, 1, 0).is_none());
    }
    pool.note_remaining(600_000);
    pool
}

fn grant(units: u64, ends_us: u64) -> Grant<&'static str> {
    Grant {
        units,
        ends_us,
        remaining: 100_000,
        tag: "receipt",
    }
}

#[test]
fn a_lease_is_asked_for_once_and_renewed_at_half_spent() {
    let mut pool = hot();
    assert!(pool.wants_lease(START));
    let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
    assert!((350..=360).contains(&units), "{units}");
    assert!(!pool.wants_lease(START), "it is being asked for");
    pool.granted(grant(400, START + 99_000));
    pool.take(START, 199, 0).unwrap();
    assert!(!pool.wants_lease(START));
    pool.take(START, 1, 0).unwrap();
    assert!(pool.wants_lease(START));
    pool.granted(grant(400, START + 99_500));
    pool.take(START, 150, 0).unwrap();
    pool.take(START, 200, 0).unwrap();
    assert!(!pool.wants_lease(START), "two at most");
    pool.take(START, 50, 0).unwrap();
    assert!(pool.wants_lease(START), "one is used up");
    // Into the first of the two.
    pool.put_back(50, |_| true);
    pool.ended(START + 99_000);
    assert!(pool.wants_lease(START + 99_000));
}

#[test]
fn after_a_refusal_there_is_a_pause() {
    let mut pool = hot();
    assert_eq!(pool.ask(&WINDOWS, START, None), Err(LeaseRefusal::Store));
    pool.refused(START);
    assert!(!pool.wants_lease(START + 4_999) && pool.wants_lease(START + 5_000));
}

#[test]
fn nothing_is_asked_for_before_the_store_said_what_is_left() {
    let mut pool = Pool::<()>::new(TERMS);
    for ask in 0..4_000 {
        pool.take(START + ask * 250, 1, 0);
    }
    assert!(!pool.wants_lease(START + 1_000_000));
    pool.note_remaining(10);
    assert!(pool.wants_lease(START + 1_000_000));
    let refused = pool.ask(&WINDOWS, START + 1_000_000, Some(START));
    assert_eq!(refused, Err(LeaseRefusal::NearLimit));
}

#[test]
fn where_another_limit_is_the_tightest_the_first_lease_is_the_smallest() {
    let mut pool = hot();
    pool.forget_remaining();
    pool.note_admitted(&WINDOWS);
    assert!(pool.wants_lease(START));
    assert_eq!(pool.ask(&WINDOWS, START, Some(START)), Ok(SMALLEST_LEASE));
    pool.note_remaining(100_000);
    pool.note_admitted(&WINDOWS);
    let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
    assert!(units > 250, "what is known stays");
}

#[test]
fn the_next_lease_is_half_as_large_if_more_than_half_came_back() {
    let mut pool = hot();
    let mut sizes = Vec::new();
    // Nothing is spent: halves, down to the smallest.
    for round in 0..7 {
        let now_us = START + round;
        let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
        sizes.push(units);
        pool.granted(grant(units, now_us));
        pool.ended(now_us);
    }
    let halves = |pair: &[u64]| pair[1] == (pair[0] / 2).max(8);
    assert!(sizes.windows(2).all(halves), "{sizes:?}");
    assert_eq!(sizes.last(), Some(&8));
    // All is spent: doubles again, up to what the rate allows.
    for round in 10..18 {
        let now_us = START + round;
        let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
        sizes.push(units);
        pool.granted(grant(units, now_us + 1));
        pool.take(now_us, units, 0).unwrap();
        pool.ended(now_us + 1);
    }
    assert!(*sizes.last().unwrap() > 350, "{sizes:?}");
}

#[test]
fn what_is_held_lasts_as_long_as_the_rate_says() {
    let mut pool = hot();
    assert_eq!(pool.lasts_us(START), 0);
    pool.granted(grant(400, START + 100_000));
    let lasts_us = pool.lasts_us(START);
    // 400 at 4,000 a second.
    assert!((95_000..110_000).contains(&lasts_us), "{lasts_us}");
    assert_eq!(pool.lasts_us(START + 100_000), 0);
}

#[test]
fn a_pool_that_is_ended_returns_everything_at_once() {
    let mut pool = hot();
    pool.granted(grant(10, START + 50));
    pool.granted(grant(10, START + 60));
    pool.end_all();
    assert!(pool.take(START, 1, 0).is_none());
    let units: u64 = pool.ended(START).iter().map(|one| one.units).sum();
    assert_eq!((units, pool.held()), (20, 0));
    assert!(!pool.is_idle(START) && pool.is_idle(START + 10_000_000));
}

#[test]
fn a_filter_is_lent_what_it_will_spend_and_what_it_holds_counts() {
    let mut pool = hot();
    pool.granted(grant(400, START + 100_000));
    // 1,000 a second for 90 ms, less what it holds.
    let lent = pool.lend(START + 20_000, Some(1_000), 10).unwrap();
    assert_eq!((lent.units, lent.ends_us), (80, START + 100_000));
    assert!(pool.lend(START + 20_000, Some(30), 0).is_none(), "too few");
    // Half of the rate here, which is 4,000 a second; at most half of what is there.
    let lent = pool.lend(START, None, 0).unwrap().units;
    assert!((155..=160).contains(&lent), "{lent}");
    assert_eq!(pool.held(), 320 - lent);
    assert!(!pool.can_lend(START, 8_000, 0) && pool.can_lend(START, 1_000, 0));
    assert!(pool.can_lend(START, 8_000, 400), "it holds the rest");
    assert!(!pool.can_lend(START + 50_000, 1_000, 0), "it ends too soon");
    let asks = |pool: &mut Pool<&'static str>| pool.ask(&WINDOWS, START, Some(START)).unwrap_or(0);
    let less = asks(&mut pool);
    pool.spent_by_filter(START, START, 0, 80 + lent);
    // It had been asked for more than it may have at once.
    assert!(asks(&mut pool) > less);
    let ended = pool.lend(START + 100_000, Some(1_000), 0);
    assert!(ended.is_none());
}
