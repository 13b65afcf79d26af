//! What one look at the pending buckets finds to be written back.

use std::cell::Cell;

use super::*;

/// They took the places of others: after a long outage, 320 keys a second were looked through, and a key that was still in its
/// window waited for hours.
#[test]
fn expired_records_take_no_place_in_a_write_back() {
    let (mut share, live) = (Share::new(1 << 20), [bucket("live", 10)]);
    for n in 0..500 {
        let key = [bucket(&n.to_string(), 10)];
        ask(&mut share, START_US, one_of(1), &key);
    }
    let now_us = START_US + MINUTE_US;
    ask(&mut share, now_us, one_of(1), &live);
    let debts = share.start_write_back(9, |_| Some(now_us));
    let keys: Vec<_> = debts.iter().map(|debt| &debt.bucket.key).collect();
    assert_eq!(keys, ["live"]);
    for n in 0..20 {
        ask(&mut share, now_us, one_of(1), &[bucket(&n.to_string(), 10)]);
    }
    assert_eq!(share.start_write_back(9, |_| Some(now_us)).len(), 9);
}

/// Each 32 buckets of a node that had returned took a look at most of those of a node that was still away, and a pause of a
/// quarter of a second after it: 20,000 of each took 43 s.
#[test]
fn a_look_past_the_buckets_of_a_node_that_is_away_finds_many() {
    const AWAY: usize = 10_000;
    const BACK: usize = 1_000;
    let mut share = Share::new(64 << 20);
    let away = (0..AWAY).map(|n| format!("away {n}"));
    for key in away.chain((0..BACK).map(|n| format!("back {n}"))) {
        let key = [bucket(&key, 10)];
        assert!(ask(&mut share, START_US, one_of(1), &key).unwrap().admitted);
    }
    let (asked, mut written) = (Cell::new(0), 0);
    let now_us = |key: &str| {
        asked.set(asked.get() + 1);
        key.starts_with("back").then_some(START_US)
    };
    while written < BACK {
        let debts = share.start_write_back(32, now_us);
        assert!(!debts.is_empty());
        written += debts.len();
        super::written(&mut share, &debts);
    }
    assert!(asked.get() < 2 * AWAY, "{} clocks", asked.get());
    assert_eq!(share.pending(), AWAY);
}

/// It is not sent anywhere, and nothing waits for it: the next look finds it if its store is back.
#[test]
fn what_a_look_found_stays_pending_if_its_store_is_away_when_its_turn_comes() {
    let mut share = Share::new(1 << 20);
    for n in 0..3 {
        let key = [bucket(&n.to_string(), 10)];
        ask(&mut share, START_US, one_of(1), &key);
    }
    assert_eq!(share.start_write_back(1, |_| Some(START_US)).len(), 1);
    assert!(share.start_write_back(1, |_| None).is_empty());
    assert_eq!((share.pending(), share.pending.len()), (3, 2));
    assert_eq!(share.start_write_back(9, |_| Some(START_US)).len(), 2);
}

/// The engine holds nothing of a window that has not begun yet, so it was taken for over: the admissions were lost.
#[test]
fn what_is_owed_stays_owed_when_the_clock_steps_back_by_more_than_a_window() {
    let mut share = Share::new(1 << 20);
    let mut key = [bucket("k", 10)];
    key[0].spec.algorithm = Algorithm::FixedWindow;
    assert!(ask(&mut share, START_US, one_of(1), &key).unwrap().admitted);
    let now_us = START_US - 3 * MINUTE_US;
    let debts = share.start_write_back(9, |_| Some(now_us));
    assert_eq!(debts.len(), 1);
}
