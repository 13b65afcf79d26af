//! Policies that change or differ, on both stores: together they admit at most what the larger of them would.

use super::lua::Lua;
use super::made::{SECOND, START_US, bucket, is_refuted, more_cases};
use super::mutations::with_bug;
use super::promises::Store;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::{Algorithm, Bucket, Memory, Record};
use std::cell::{Cell, RefCell};

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
    check(&Store::Memory(RefCell::new(Memory::new())));
}

#[test]
fn a_client_that_asks_two_policies_gets_what_the_larger_allows() {
    on_both(|store| {
        let (small, large) = (token("two", 5, 5), token("two", 10, 1_000));
        let mut admitted = 0;
        for step in 0..100 {
            let now = START_US + step * SECOND / 10;
            admitted += drain(store, now, &small, 2_000) + drain(store, now, &large, 2_000);
        }
        // The burst, and 9.9 s of the larger rate.
        assert_eq!(admitted, 1_000 + 99);
    });
}

#[test]
fn a_quota_that_is_lowered_for_two_seconds_refills_nothing() {
    on_both(|store| {
        let (small, large) = (token("brief", 5, 5), token("brief", 10, 5_000));
        assert_eq!(drain(store, START_US, &large, 6_000), 5_000);
        for step in 1..20 {
            drain(store, START_US + step * SECOND / 10, &small, 1);
        }
        let now = START_US + 2 * SECOND;
        assert!(drain(store, now, &large, 6_000) <= 20);
    });
}

/// What was cut is not only found by the rate that let it in.
#[test]
fn a_larger_burst_of_the_smaller_rate_finds_what_was_cut() {
    on_both(|store| {
        let policies = [(10, 5_000), (5, 5), (5, 5_000)];
        let [large, small, slow] = policies.map(|(quota, burst)| token("slow", quota, burst));
        assert_eq!(drain(store, START_US, &large, 6_000), 5_000);
        assert_eq!(drain(store, START_US + SECOND, &small, 10), 5);
        assert!(drain(store, START_US + SECOND, &slow, 6_000) <= 10);
    });
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
        for step in 1..=hour {
            let units = std::slice::from_ref(&fast);
            let now = START_US + step * SECOND / 10;
            assert!(store.decide(now, units, &[5], false).admitted);
        }
        let now = START_US + (3_600 + 500) * SECOND;
        assert_eq!(left(store, now, &slow), 5_000);
    });
}

#[test]
fn who_gives_or_writes_back_by_an_old_policy_takes_nothing_away() {
    let lua = RefCell::new(Lua::start());
    let (old, new) = (
        token("sg:{back}:", 100, 1_000),
        token("sg:{back}:", 10, 5_000),
    );
    let lua_store = Store::Lua(&lua);
    assert_eq!(drain(&lua_store, START_US, &new, 6_000), 5_000);
    let later = START_US + SECOND;
    let returned = lua
        .borrow_mut()
        .try_give_back(Some(later), &old, 1, START_US);
    let records = [Record {
        at_us: START_US,
        units: 500,
    }];
    let recorded = lua.borrow_mut().try_write_back(Some(later), &old, &records);
    // Ten a second flow back, so nothing is left of a unit that was taken a second ago.
    assert_eq!((returned, recorded), (Ok(0), Ok(500)));
    assert_eq!(left(&lua_store, later + 49 * SECOND, &new), 0);
    assert_eq!(left(&lua_store, later + 59 * SECOND, &new), 100);

    let mut memory = Memory::new();
    let all = super::made::one(&new, 5_000, false);
    assert!(memory.decide(START_US, &all)[0].is_ok_and(|outcome| outcome.admitted));
    let back = (
        memory.give_back(later, &old, 1, START_US),
        memory.write_back(later, &old, &records),
    );
    assert_eq!(back, (0, 500));
    let memory = Store::Memory(RefCell::new(memory));
    assert_eq!(left(&memory, later + 49 * SECOND, &new), 0);
    assert_eq!(left(&memory, later + 59 * SECOND, &new), 100);
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

/// A pause and a cost by one of the policies.
type Step = (usize, u64, u64);

fn inputs() -> impl Strategy<Value = (Vec<(u64, u64)>, Vec<Step>)> {
    let policy = (1u64..40, 1u64..300);
    let pause = prop_oneof![2 => Just(0u64), 4 => 1u64..SECOND, 1 => 1u64..20 * SECOND];
    let step = (0usize..4, pause, prop_oneof![1u64..4, 1u64..200]);
    (
        prop::collection::vec(policy, 2..5),
        prop::collection::vec(step, 1..120),
    )
}

/// Whether generated traffic by several policies ever gets more than the largest rate and the largest burst allow.
fn admits_too_much(store: &Store, cases: u32) -> bool {
    let case = Cell::new(0);
    is_refuted(cases, &inputs(), |(policies, steps)| {
        case.set(case.get() + 1);
        let key = format!("sg:{{policies-{}}}:", case.get());
        let buckets: Vec<_> = policies
            .iter()
            .map(|(quota, burst)| token(&key, *quota, *burst))
            .collect();
        let rate = policies.iter().map(|(quota, _)| *quota).max().unwrap_or(0);
        let burst = policies.iter().map(|(_, burst)| *burst).max().unwrap_or(0);
        // Of the bucket that has both, in millionths of a unit.
        let (mut level, mut now) = (0_u64, START_US);
        for (policy, pause, cost) in steps {
            let bucket = &buckets[policy % buckets.len()];
            (level, now) = (level.saturating_sub(pause * rate), now + pause);
            let cost = cost.min(bucket.spec.most_at_once());
            if store
                .decide(now, std::slice::from_ref(bucket), &[cost], false)
                .admitted
            {
                level += cost * SECOND;
            }
            if level > burst * SECOND {
                return Err(TestCaseError::fail(format!("{level} of {burst}")));
            }
        }
        Ok(())
    })
}

#[test]
fn policies_that_alternate_admit_at_most_the_largest_rate_and_burst() {
    let cases = 300 * more_cases();
    let lua = RefCell::new(Lua::start());
    assert!(!admits_too_much(&Store::Lua(&lua), cases));
    assert!(!admits_too_much(
        &Store::Memory(RefCell::new(Memory::new())),
        cases
    ));
}

#[test]
fn a_script_that_forgets_what_a_policy_cuts_is_found() {
    let lua = RefCell::new(Lua::start());
    lua.borrow_mut()
        .use_script(&with_bug("what a change of the policy cuts is forgotten"));
    assert!(admits_too_much(&Store::Lua(&lua), 500));
}
