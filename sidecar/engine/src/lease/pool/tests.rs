//! Tests of the leases of one key.

use super::*;
use crate::test::{sliding, spec};

const TERMS: LeaseTerms = LeaseTerms {
    longest_us: 100_000,
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
    let units = pool.ask(&WINDOWS, START, Some(START), 1, 0).unwrap();
    // 400 are expected.
    assert!((405..=425).contains(&units), "{units}");
    assert!(!pool.may_ask(START), "it is being asked for");
    pool.granted(grant(400, START + 99_000));
    pool.take(START, 199, 0).unwrap();
    assert!(!pool.wants_renewal(START));
    pool.take(START, 1, 0).unwrap();
    assert!(pool.wants_renewal(START));
    pool.granted(grant(400, START + 99_500));
    pool.take(START, 150, 0).unwrap();
    pool.take(START, 200, 0).unwrap();
    assert!(!pool.wants_renewal(START), "two at most");
    pool.take(START, 50, 0).unwrap();
    assert!(pool.wants_renewal(START), "one is used up");
    pool.ended(START + 99_500);
    assert!(
        !pool.wants_renewal(START + 99_500),
        "the next question takes one along"
    );
}

#[test]
fn after_a_refusal_there_is_a_pause() {
    let mut pool = hot();
    let unknown = pool.ask(&WINDOWS, START, None, 1, 0);
    assert_eq!(unknown, Err(LeaseRefusal::Store));
    pool.refused(START);
    assert!(!pool.may_ask(START + 4_999) && pool.may_ask(START + 5_000));
}

#[test]
fn nothing_is_asked_for_before_the_store_said_what_is_left() {
    let mut pool = Pool::<()>::new(TERMS);
    for ask in 0..4_000 {
        pool.take(START + ask * 250, 1, 0);
    }
    assert!(!pool.may_ask(START + 1_000_000));
    pool.note_remaining(10);
    assert!(pool.may_ask(START + 1_000_000));
    let refused = pool.ask(&WINDOWS, START + 1_000_000, Some(START), 1, 0);
    assert_eq!(refused, Err(LeaseRefusal::NearLimit));
}

#[test]
fn where_another_limit_is_the_tightest_the_first_lease_is_small() {
    let mut pool = hot();
    pool.forget_remaining();
    pool.note_admitted(&WINDOWS);
    let first = pool.ask(&WINDOWS, START, Some(START), 1, 0);
    assert_eq!(first, Ok(SMALLEST_RENEWAL));
    pool.note_remaining(100_000);
    pool.note_admitted(&WINDOWS);
    let units = pool.ask(&WINDOWS, START, Some(START), 1, 0).unwrap();
    assert!(units > 250, "what is known stays");
}

#[test]
fn a_key_of_two_requests_a_second_has_a_lease_of_a_few_units() {
    let mut pool = Pool::<()>::new(LeaseTerms {
        longest_us: 1_000_000,
    });
    for ask in 1..=8 {
        pool.take(START + ask * 500_000, 1, 0);
    }
    pool.note_remaining(600_000);
    let now_us = START + 4_000_000;
    let units = pool.ask(&WINDOWS, now_us, Some(now_us), 1, 1);
    assert_eq!(units, Ok(2), "without the request that is there already");
    assert_eq!(
        pool.ask(&WINDOWS, now_us, Some(now_us + 800_000), 1, 1),
        Err(LeaseRefusal::Seldom)
    );
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
    assert!(!pool.is_idle(START) && pool.is_idle(START + 20_000_000));
}

#[test]
fn a_filter_is_lent_what_it_will_spend_and_what_it_holds_counts() {
    let mut pool = hot();
    pool.granted(grant(400, START + 100_000));
    // 80 are expected, and nine more may come; less what it holds.
    let lent = pool.lend(START + 20_000, Some(1_000), 10, 1).unwrap();
    assert_eq!((lent.units, lent.ends_us), (78, START + 100_000));
    assert!(
        pool.lend(START + 20_000, Some(4), 0, 1).is_none(),
        "too few"
    );
    // One of three filters.
    assert_eq!(pool.lend(START, None, 0, 3).unwrap().units, 108);
    assert_eq!(pool.held(), 214);
    assert!(!pool.can_lend(START, 8_000, 0) && pool.can_lend(START, 1_000, 0));
    assert!(pool.can_lend(START, 8_000, 400), "it holds the rest");
    assert!(!pool.can_lend(START + 50_000, 1_000, 0), "it ends too soon");
    let asks = |pool: &mut Pool<&'static str>| pool.ask(&WINDOWS, START, Some(START), 1, 0);
    let less = asks(&mut pool).unwrap_or(0);
    pool.spent_by_filter(START, START, 0, 78 + 108);
    // It had been asked for more than it may have at once.
    assert!(asks(&mut pool).unwrap() > less);
    assert_eq!(
        pool.lend(START, None, 0, 1).unwrap().units,
        214,
        "all to the only one"
    );
    let ended = pool.lend(START + 100_000, Some(1_000), 0, 1);
    assert!(ended.is_none());
}
