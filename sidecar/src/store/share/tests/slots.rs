//! Slots that shares have, and what the store learns of them.

use super::*;
use sluicegate_engine::{SlotId, Take, TakenSlots};

const EXPIRE_US: u64 = 30_000_000;

fn slots(quota: u64) -> Bucket {
    let spec = BucketSpec {
        algorithm: Algorithm::Slots,
        quota,
        window_us: EXPIRE_US,
    };
    Bucket {
        key: "slots".to_owned(),
        spec,
    }
}

fn id(number: u128) -> SlotId {
    SlotId::new(1, START_US, 1, EXPIRE_US, number)
}

fn take(share: &mut Share, now_us: u64, bucket: &Bucket, number: u128) -> bool {
    let batch = Batch {
        buckets: vec![bucket.clone()],
        decisions: vec![Decision {
            takes: vec![Take { bucket: 0, cost: 1 }],
            peek: false,
            asks: false,
            holds: Vec::new(),
            slots: vec![TakenSlots {
                bucket: 0,
                id: id(number),
            }],
        }],
    };
    let taken = share.decide(now_us, one_of(2), (&batch, &batch.decisions[0]), &[0]);
    taken.unwrap().admitted
}

fn settle(share: &mut Share, now_us: u64, bucket: &Bucket, guard: Guard, is_down: bool) {
    let mut one = Settlements::default();
    one.return_to(guard, [bucket.clone()]);
    share.settle_slots(now_us, &one.each[0], bucket, is_down);
}

/// What the store is told, by the ids.
fn told(share: &mut Share, now_us: u64) -> (Vec<SlotId>, Settlements) {
    let unknown = share.unknown_slots(|_| Some(now_us));
    let ids = unknown.each.iter().map(|one| match one.guard {
        Guard::Renew(id) => id,
        _ => panic!("{one:?}"),
    });
    let mut ids: Vec<_> = ids.collect();
    ids.sort_unstable();
    (ids, unknown)
}

#[test]
fn half_of_the_slots_are_for_one_of_two_and_the_store_learns_who_has_them() {
    let (mut share, bucket) = (Share::new(usize::MAX), slots(4));
    let taken = [1, 2, 3].map(|number| take(&mut share, START_US, &bucket, number));
    assert_eq!(taken, [true, true, false]);
    assert_eq!(share.pending(), 0, "nothing waits for a write-back");
    settle(&mut share, START_US, &bucket, Guard::Free(id(1)), true);
    assert!(take(&mut share, START_US, &bucket, 4));
    let (ids, unknown) = told(&mut share, START_US);
    assert_eq!(ids, [id(2), id(4)]);
    assert!(!share.has_slots());
    share.put_back_slots(unknown);
    assert_eq!(told(&mut share, START_US).0, [id(2), id(4)]);
    assert_eq!(share.unknown_slots(|_| None).each, []);
}

#[test]
fn streams_that_the_store_admitted_count_in_the_share_as_soon_as_they_are_renewed() {
    let (mut share, bucket) = (Share::new(usize::MAX), slots(4));
    settle(&mut share, START_US, &bucket, Guard::Renew(id(7)), false);
    assert!(!share.has_slots(), "the store knows it");
    for number in [7, 8] {
        settle(
            &mut share,
            START_US,
            &bucket,
            Guard::Renew(id(number)),
            true,
        );
    }
    assert!(!take(&mut share, START_US, &bucket, 9));
    let later_us = START_US + EXPIRE_US;
    assert!(take(&mut share, later_us, &bucket, 9), "they have ended");
    assert_eq!(told(&mut share, later_us).0, [id(9)]);
}
