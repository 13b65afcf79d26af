//! Shares: what they admit, and what they owe.

mod looks;
mod merged;
mod repeated;
mod resets;
mod slots;

use super::*;
use crate::store::tests as test_batches;
use sluicegate_engine::{Algorithm, BucketSpec, Calendar, CalendarUnit, Guard};
use std::collections::HashSet;

const MINUTE_US: u64 = 60_000_000;
const START_US: u64 = 1_000 * MINUTE_US;

fn bucket(key: &str, quota: u64) -> Bucket {
    let spec = BucketSpec {
        algorithm: Algorithm::SlidingLog,
        quota,
        window_us: MINUTE_US,
    };
    Bucket {
        key: key.to_owned(),
        spec,
    }
}

fn at(after_us: u64, units: u64) -> Record {
    Record {
        at_us: START_US + after_us,
        units,
    }
}

fn one_of(of: u64) -> FleetPosition {
    FleetPosition { rank: 0, of }
}

/// How many of so many units at this time are admitted.
fn admitted(
    share: &mut Share,
    now_us: u64,
    position: FleetPosition,
    bucket: &[Bucket],
    of: u64,
) -> usize {
    let outcomes = (0..of).map(|_| ask(share, now_us, position, bucket));
    outcomes
        .flatten()
        .filter(|outcome| outcome.admitted)
        .count()
}

/// Asks for a unit of each bucket.
fn ask(
    share: &mut Share,
    now_us: u64,
    position: FleetPosition,
    buckets: &[Bucket],
) -> Option<Outcome> {
    let all: Vec<_> = (0..buckets.len()).collect();
    let batch = test_batches::batch(buckets.to_vec(), std::slice::from_ref(&all));
    share.decide(now_us, position, (&batch, &batch.decisions[0]), &all)
}

/// An hour, and 15 minutes of it are left.
const HOUR_US: u64 = 60 * MINUTE_US;
const LATE_US: u64 = 60 * HOUR_US - 15 * MINUTE_US;

/// A bucket of each algorithm.
fn one_of_each(quota: u64, window_us: u64) -> [Bucket; 5] {
    let day = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
    let precision_us = window_us / 100;
    [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow {
            precision_us,
            leased: false,
        },
        Algorithm::FixedWindow,
        Algorithm::CalendarWindow(day),
        Algorithm::TokenBucket { burst: quota },
    ]
    .map(|algorithm| {
        let longest_us = match algorithm {
            Algorithm::CalendarWindow(_) => 25 * HOUR_US,
            _ => window_us,
        };
        let spec = BucketSpec {
            algorithm,
            quota,
            window_us: longest_us,
        };
        Bucket {
            key: "k".to_owned(),
            spec,
        }
    })
}

/// Writes all that is owed back to a store.
fn write_back(share: &mut Share, store: &mut Memory, now_us: u64) {
    let debts = share.start_write_back(9, |_| Some(now_us));
    store.settle(now_us, &settlements(&debts, &now_us.to_string(), true));
    written(share, &debts);
    assert_eq!(share.pending(), 0);
}

/// The store has recorded these.
fn written(share: &mut Share, debts: &[Debt]) {
    let rest = share.answered(debts.to_vec(), &vec![true; debts.len()], |_| None);
    assert!(rest.is_empty());
}

/// What is left of a bucket in a store.
fn left(store: &mut Memory, now_us: u64, bucket: &Bucket) -> u64 {
    let mut batch = test_batches::batch(vec![bucket.clone()], &[[0]]);
    batch.decisions[0].peek = true;
    store.decide(now_us, &batch)[0].unwrap().remaining
}

#[test]
fn a_share_admits_its_part_and_owes_it_to_the_whole_bucket() {
    let (mut share, whole) = (Share::new(1 << 20), [bucket("k", 10)]);
    let ask = |share: &mut Share, n| ask(share, START_US + n, one_of(3), &whole);
    let admitted = (0..10).filter(|n| ask(&mut share, *n).unwrap().admitted);
    assert_eq!(admitted.count(), 4);
    assert!(share.is_pending(&whole[0]));
    let debts = share.start_write_back(9, |_| Some(START_US + 10));
    assert_eq!(debts[0].bucket, whole[0]);
    let owed: Vec<_> = (0..4).map(|n| at(n, 1)).collect();
    assert_eq!(debts[0].records, owed);
    // Until it is known to be written.
    assert!(share.is_pending(&whole[0]));
    written(&mut share, &debts);
    assert_eq!(share.pending(), 0);
}

#[test]
fn a_denied_decision_owes_nothing_and_a_cost_above_the_share_has_no_answer() {
    let (mut share, buckets) = (Share::new(1 << 20), [bucket("a", 10), bucket("b", 1)]);
    assert_eq!(admitted(&mut share, START_US, one_of(1), &buckets, 1), 1);
    let denied = ask(&mut share, START_US, one_of(1), &buckets).unwrap();
    assert!(!denied.admitted && denied.decided_by == 1);
    let debts = share.start_write_back(9, |_| Some(START_US));
    let owed = debts.iter().flat_map(|debt| &debt.records);
    assert_eq!(owed.map(|record| record.units).sum::<u64>(), 2);
    let (mut other, last_of_three) = (Share::new(1 << 20), FleetPosition { rank: 2, of: 3 });
    assert_eq!(ask(&mut other, START_US, last_of_three, &buckets), None);
}

#[test]
fn admissions_during_a_write_back_are_owed_separately() {
    let (mut share, whole) = (Share::new(1 << 20), [bucket("k", 10)]);
    ask(&mut share, START_US, one_of(1), &whole);
    let debts = share.start_write_back(9, |_| Some(START_US));
    ask(&mut share, START_US + 5, one_of(1), &whole);
    written(&mut share, &debts);
    assert!(share.is_pending(&whole[0]));
    let left = admitted(&mut share, START_US + 6, one_of(1), &whole, 10);
    assert_eq!(left, 8);
    let debts = share.start_write_back(9, |_| Some(START_US + 7));
    assert_eq!(debts[0].records, [at(5, 1), at(6, 8)]);
    let at = |after_us: u64| move |_: &str| Some(START_US + after_us);
    let rest = share.answered(debts.clone(), &[false], at(7));
    assert!(rest == debts && share.is_pending(&whole[0]));
    let rest = share.answered(rest, &[false], at(7 + MINUTE_US));
    assert!(rest.is_empty() && share.pending() == 0, "it has expired");
}

#[test]
fn records_older_than_their_window_are_not_written_back() {
    let (mut share, whole) = (Share::new(1 << 20), [bucket("k", 10)]);
    ask(&mut share, START_US, one_of(1), &whole);
    let debts = share.start_write_back(9, |_| Some(START_US + MINUTE_US));
    assert!(debts.is_empty());
    assert_eq!(share.pending(), 0);
}

/// On a Cluster each debt is settled by itself, and two windows of one subject have one slot: with a mark for both, the second
/// was taken for a repetition of the first, and its admissions were lost.
#[test]
fn each_debt_has_a_mark_of_its_own_in_its_slot() {
    let keys = ["sg:{s}:l:log1:1s", "sg:{s}:l:log1:1h", "sg:{s}:m:log1:1s"];
    let debts = keys.map(|key| Debt {
        bucket: bucket(key, 1),
        records: Vec::new(),
    });
    let together = settlements(&debts, "name-1", false);
    assert_eq!(together.each.len(), 1);
    let marks = settlements(&debts, "name-1", true)
        .each
        .into_iter()
        .map(|one| {
            let Guard::Once { key, .. } = one.guard else {
                panic!("{one:?}")
            };
            key
        });
    let marks: Vec<_> = marks.collect();
    assert!(marks.iter().all(|mark| mark.starts_with("sg:{s}:")));
    let all = marks.iter().map(String::as_str).chain(keys);
    let different: HashSet<_> = all.collect();
    assert_eq!(different.len(), 2 * keys.len(), "{marks:?}");
}

/// A connection that broke every 200 ms admitted more than twice the quota of two seconds, since each outage began with
/// a whole share (tests/chaos). With a window of a day, each outage of the day did.
#[test]
fn a_later_outage_finds_what_the_share_has_admitted_in_the_window() {
    let (mut share, whole) = (Share::new(1 << 20), [bucket("k", 10)]);
    let admitted = |share: &mut Share, after_us: u64| {
        let times = (0..20).map(|n| START_US + after_us + n);
        times
            .map(|now_us| admitted(share, now_us, one_of(1), &whole, 1))
            .sum::<usize>()
    };
    assert_eq!(admitted(&mut share, 0), 10);
    let debts = share.start_write_back(9, |_| Some(START_US + 50));
    written(&mut share, &debts);
    assert_eq!(share.pending(), 0, "the store decides");
    assert_eq!(admitted(&mut share, 1_000), 0, "until it is down again");
    assert_eq!(admitted(&mut share, MINUTE_US + 20), 10, "a window later");
    let debts = share.start_write_back(9, |_| Some(START_US + MINUTE_US + 50));
    written(&mut share, &debts);
    share.sweep(2 * MINUTE_US);
    assert!(share.engine.is_empty(), "nothing is left of it");
}

/// A call whose answer was lost was given up when a later call for the same bucket succeeded, since nothing was pending
/// any more: what it had to record was lost (tests/chaos, a connection that breaks five times a second).
#[test]
fn a_bucket_is_pending_until_every_call_for_it_is_answered() {
    let (mut share, whole) = (Share::new(1 << 20), [bucket("k", 10)]);
    ask(&mut share, START_US, one_of(1), &whole);
    let unanswered = share.start_write_back(9, |_| Some(START_US + 1));
    ask(&mut share, START_US + 2, one_of(1), &whole);
    let later = share.start_write_back(9, |_| Some(START_US + 3));
    assert_eq!(share.pending(), 1);
    written(&mut share, &later);
    assert!(share.is_pending(&whole[0]));
    written(&mut share, &unanswered);
    assert_eq!(share.pending(), 0);
}

/// Each key that was ever asked for stayed until the store was back, and the sidecar grew by a megabyte a second.
#[test]
fn what_has_left_its_window_is_not_owed_for_the_rest_of_an_outage() {
    let mut share = Share::new(1 << 20);
    let ask = |share: &mut Share, n: u64| {
        let now_us = START_US + n * MINUTE_US / 100;
        let outcome = ask(share, now_us, one_of(1), &[bucket(&n.to_string(), 10)]);
        assert!(outcome.unwrap().admitted);
        share.sweep(0);
    };
    let most = (0..10_000).map(|n| {
        ask(&mut share, n);
        share.pending()
    });
    assert!(most.max() <= Some(PURGE_ABOVE), "100 are in their window");
    assert!((9_901..10_000).all(|n: u64| share.is_pending(&bucket(&n.to_string(), 10))));
}

/// The level of the bucket was written back by each call, and so twice if the first one's answer was lost.
#[test]
fn a_token_bucket_is_written_back_by_one_call_at_a_time() {
    let mut whole = [bucket("k", 10)];
    whole[0].spec.algorithm = Algorithm::TokenBucket { burst: 10 };
    let mut share = Share::new(1 << 20);
    let take = |share: &mut Share, times: usize| {
        let outcomes = (0..times).map(|_| ask(share, START_US, one_of(1), &whole));
        assert!(outcomes.flatten().all(|outcome| outcome.admitted));
    };
    take(&mut share, 3);
    let unanswered = share.start_write_back(9, |_| Some(START_US));
    take(&mut share, 2);
    let mut sent = unanswered.clone();
    sent.extend(share.start_write_back(9, |_| Some(START_US)));
    // Repeated, and answered.
    written(&mut share, &unanswered);
    sent.extend(share.start_write_back(9, |_| Some(START_US)));
    let units = sent.iter().flat_map(|debt| &debt.records).map(|r| r.units);
    assert_eq!(units.sum::<u64>(), 5);
}

/// It was purged only when it had doubled since the last time: after a flood, until the store was back, the keys of the flood
/// stayed. Those of a window with edges stayed for a whole window after its edge, although nothing could be written back.
#[test]
fn what_a_flood_of_keys_owed_is_dropped_although_few_keys_come_after_it() {
    for (algorithm, window_minutes, flood_at) in [
        (Algorithm::SlidingLog, 1, START_US),
        // Five minutes before a full hour.
        (Algorithm::FixedWindow, 60, START_US + 15 * MINUTE_US),
    ] {
        let mut share = Share::new(64 << 20);
        let admit = |share: &mut Share, now_us: u64, key: String| {
            let mut key = [bucket(&key, 10)];
            key[0].spec.algorithm = algorithm;
            key[0].spec.window_us = window_minutes * MINUTE_US;
            assert!(ask(share, now_us, one_of(1), &key).unwrap().admitted);
            assert!(share.is_pending(&key[0]));
        };
        (0..20_000).for_each(|n| admit(&mut share, flood_at, n.to_string()));
        share.sweep(0);
        assert_eq!(share.pending(), 20_000, "all are in their window");
        for minute in 1..=35 {
            let now_us = flood_at + minute * MINUTE_US;
            admit(&mut share, now_us, format!("after {minute}"));
            share.sweep(0);
        }
        let left = share.pending();
        assert!(left <= PURGE_ABOVE, "{left} of {algorithm:?}");
    }
}

/// While one node of a Cluster is away, another tells how many sidecars there are: what was pending for any key kept the share
/// of every key as it was in the beginning.
#[test]
fn a_share_follows_the_number_of_sidecars_while_something_is_pending() {
    let [old, new] = ["old", "new"].map(|key| [bucket(key, 10)]);
    let mut share = Share::new(1 << 20);
    let admitted = |share: &mut Share, position, bucket: &[Bucket]| {
        admitted(share, START_US, position, bucket, 20)
    };
    assert_eq!(admitted(&mut share, one_of(2), &old), 5);
    assert_eq!(admitted(&mut share, one_of(1), &new), 10);
    assert_eq!(admitted(&mut share, one_of(1), &old), 5, "5 before");
    assert_eq!(admitted(&mut share, one_of(5), &old), 0, "5 of 2");
}

/// What a token bucket's level drains by is the share's rate: with another one it would drain as if that had applied all along.
#[test]
fn a_token_buckets_share_stays_until_its_level_is_written_back() {
    let tokens = |key: &str| {
        let mut one = bucket(key, 60);
        one.spec.algorithm = Algorithm::TokenBucket { burst: 10 };
        [one]
    };
    let mut share = Share::new(1 << 20);
    let remaining = |share: &mut Share, after_us, position, key: &str| {
        let outcome = ask(share, START_US + after_us, position, &tokens(key));
        outcome.unwrap().remaining
    };
    assert_eq!(remaining(&mut share, 0, one_of(2), "k"), 4);
    assert_eq!(remaining(&mut share, 0, one_of(1), "k"), 3, "of two");
    assert_eq!(remaining(&mut share, 0, one_of(1), "other"), 9, "new");
    let debts = share.start_write_back(9, |_| Some(START_US));
    assert_eq!(debts.len(), 2);
    assert_eq!(remaining(&mut share, 0, one_of(1), "k"), 2, "sent");
    written(&mut share, &debts);
    // It goes on holding all three, of which half a one has drained, until the last of them is written back.
    assert_eq!(remaining(&mut share, 1_000_000, one_of(1), "k"), 1, "of 5");
    let debts = share.start_write_back(9, |_| Some(START_US + 1_000_000));
    assert_eq!(debts[0].records, [at(1_000_000, 2)]);
    written(&mut share, &debts);
    assert_eq!(remaining(&mut share, 1_000_000, one_of(1), "k"), 5);
}

/// One node of a Cluster that fails kept what another had recorded among the debts, and the keys of that other node with the
/// shares.
#[test]
fn of_a_write_back_that_fails_in_part_only_the_rest_is_sent_again() {
    let keys = ["a", "b", "c"].map(|key| bucket(key, 10));
    let mut share = Share::new(1 << 20);
    for key in &keys {
        ask(&mut share, START_US, one_of(1), std::slice::from_ref(key));
    }
    let mut debts = share.start_write_back(9, |_| Some(START_US));
    debts.sort_by(|a, b| a.bucket.key.cmp(&b.bucket.key));
    let rest = share.answered(debts.clone(), &[true, false, true], |_| None);
    assert_eq!(rest, debts[1..2]);
    let pending = keys.each_ref().map(|key| share.is_pending(key));
    assert_eq!(pending, [false, true, false]);
    // Its node's clock decides whether it has expired.
    let clock = |of: &'static str| move |key: &str| (key == of).then_some(START_US + MINUTE_US);
    let rest = share.answered(rest, &[false], clock("a"));
    assert_eq!(rest, debts[1..2]);
    let rest = share.answered(rest, &[false], clock("b"));
    assert!(rest.is_empty() && share.pending() == 0);
}
