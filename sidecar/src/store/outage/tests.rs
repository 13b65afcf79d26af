//! Keys that a share owes admissions of, until these are written back.

use super::*;
use sluicegate_engine::{Algorithm, SlotId, TakenSlots};

use crate::policy::StoreAddress;
use crate::store::tests::{batch, bucket};

/// Longer than any test takes, on a machine that stalls.
const FAR: Duration = Duration::from_secs(600);

/// A store that is up, and a share that has admitted the first of two decisions, over different keys.
fn after_an_outage() -> (Outage, Store, Batch) {
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1), 1 << 20);
    let outage = Outage::new(1 << 20);
    outage.settle(FleetPosition { rank: 0, of: 1 });
    let batch = batch(vec![bucket("owed"), bucket("free")], &[[0], [1]]);
    let outcome = outage.decide(&store, &batch, &batch.decisions[0], &[0]);
    assert!(outcome.unwrap().admitted);
    assert_eq!(outage.pending(), 1);
    (outage, store, batch)
}

#[tokio::test]
async fn decisions_over_owed_keys_wait_for_the_store_and_no_others() {
    let (outage, store, batch) = after_an_outage();
    assert!(outage.lacks_some(batch.buckets.iter()));
    let held = outage.held_back(&store, &batch, Instant::now() + FAR);
    let wait = Duration::from_millis(20);
    assert!(timeout(wait, held).await.is_err(), "nobody writes back");
    let held = outage.held_back(&store, &batch, Instant::now()).await;
    assert!(held.is_empty(), "the store is up: it decides in the end");
    let is_out = |index: usize| outage.is_out(&store, &batch, &batch.decisions[index]);
    assert!(is_out(0) && !is_out(1));
    let others = crate::store::tests::batch(vec![bucket("free")], &[[0]]);
    assert!(!outage.lacks_some(others.buckets.iter()));
    let held = outage.held_back(&store, &others, Instant::now() + FAR);
    assert!(held.await.is_empty(), "without waiting");
}

#[tokio::test]
async fn a_decision_that_is_held_back_waits_for_the_write_back_and_then_goes_to_the_store() {
    let (outage, store, batch) = after_an_outage();
    let held = tokio::select! {
        // Waits first, so that it is woken.
        biased;
        held = outage.held_back(&store, &batch, Instant::now() + FAR) => held,
        () = outage.write_back(&store, "me") => Vec::new(),
        () = tokio::time::sleep(FAR / 5) => panic!("it was not woken"),
    };
    assert!(held.is_empty());
    assert_eq!(outage.pending(), 0);
    assert!(!outage.is_out(&store, &batch, &batch.decisions[0]));
}

/// A Redis that returned empty listed the first sidecar that reported to it as the only one: for a second it decided by the
/// whole quota over what it had yet to write back, as did the second sidecar by a half.
#[test]
fn the_first_to_report_after_an_outage_takes_no_larger_share() {
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1), 1 << 20);
    let (outage, start) = (Outage::new(1 << 20), Instant::now());
    let report = |after_ms, of| {
        let now = start + Duration::from_millis(after_ms);
        let position = FleetPosition { rank: 0, of };
        let list_age = Duration::from_secs(60);
        outage.report_position(now, Announced { position, list_age });
    };
    let mut hot = bucket("hot");
    (hot.spec.quota, hot.spec.window_us) = (100, 3_600_000_000);
    let batch = batch(vec![hot], &[[0]]);
    let admitted = || {
        let outcomes = (0..100).map(|_| outage.decide(&store, &batch, &batch.decisions[0], &[0]));
        let admitted = outcomes.filter(|outcome| outcome.as_ref().unwrap().admitted);
        admitted.count()
    };
    (0..3).for_each(|second| report(second * 1_000, 3));
    assert_eq!(admitted(), 34);
    report(10_000, 1);
    assert_eq!(admitted(), 0, "the others have not reported yet");
    (11..15).for_each(|second| report(second * 1_000, 1));
    assert_eq!(admitted(), 0, "a sidecar may be that late, and alive");
    report(15_000, 1);
    assert_eq!(admitted(), 66, "it is alone");
}

/// A sweep read the time of the last decision, long ago, and then waited for the lock that the first decision of an outage
/// held: it took that decision for as old, and freed its units, which the share then admitted again (tests/chaos).
#[test]
fn a_sweep_keeps_what_is_admitted_while_it_waits() {
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1), 1 << 20);
    let (outage, alone) = (Outage::new(1 << 20), FleetPosition { rank: 0, of: 1 });
    outage.settle(alone);
    let mut owed = bucket("owed");
    owed.spec.window_us = 60_000_000;
    let batch = batch(vec![owed], &[[0]]);
    *lock(&outage.told_at) = Instant::now() - Duration::from_secs(120);
    std::thread::scope(|scope| {
        let mut share = outage.share();
        scope.spawn(|| outage.sweep());
        // By then it waits; if it does not, on a machine that stalls, this shows nothing, and is not red.
        std::thread::sleep(Duration::from_millis(100));
        // As `Outage::decide` does with the lock.
        let now_us = store.clock_us("owed").unwrap();
        let outcome = share.decide(now_us, alone, (&batch, &batch.decisions[0]), &[0]);
        assert!(outcome.unwrap().admitted);
        *lock(&outage.told_at) = Instant::now();
    });
    let more = (0..5).map(|_| outage.decide(&store, &batch, &batch.decisions[0], &[0]));
    let admitted = more.filter(|outcome| outcome.as_ref().unwrap().admitted);
    assert_eq!(admitted.count(), 4, "of five");
}

/// What frees a slot tells the share the time, so that a sweep must count from then: it counted from the last decision, and took
/// slots for as much older.
#[test]
fn a_sweep_keeps_slots_when_others_have_been_freed_since_the_last_decision() {
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1), 1 << 20);
    let outage = Outage::new(1 << 20);
    outage.settle(FleetPosition { rank: 0, of: 1 });
    let mut slots = bucket("slots");
    (slots.spec.algorithm, slots.spec.quota) = (Algorithm::Slots, 1);
    slots.spec.window_us = 60_000_000;
    let now_us = store.clock_us("slots").unwrap();
    let id = |number| SlotId::new(1, now_us, 1, slots.spec.window_us, number);
    let takes = |number| {
        let mut batch = batch(vec![slots.clone()], &[[0]]);
        let (bucket, id) = (0, id(number));
        batch.decisions[0].slots = vec![TakenSlots { bucket, id }];
        let outcome = outage.decide(&store, &batch, &batch.decisions[0], &[0]);
        outcome.unwrap().admitted
    };
    assert!(takes(1));
    *lock(&outage.told_at) = Instant::now() - Duration::from_secs(120);
    let mut another = Settlements::default();
    another.return_to(Guard::Free(id(2)), [slots.clone()]);
    outage.settle_slots(&store, &another);
    outage.sweep();
    assert!(!takes(3));
}

/// What it owed was written back after the reset, so that the key had not its whole quota.
#[tokio::test]
async fn nothing_that_a_share_admitted_before_a_reset_is_recorded_after_it() {
    let (outage, store, batch) = after_an_outage();
    let keys = ["owed".to_owned()];
    outage.reset(&store, &keys).await.unwrap();
    assert_eq!(outage.pending(), 0);
    assert!(!outage.is_out(&store, &batch, &batch.decisions[0]));
    let outcome = outage.decide(&store, &batch, &batch.decisions[0], &[0]);
    assert_eq!(outcome.unwrap().remaining, 4, "of five");

    // Of a call whose answer was lost, nothing more is recorded if the store has not executed it.
    let debts = outage.start_write_back(&store);
    let name = "me-1".to_owned();
    outage
        .unanswered
        .lock()
        .await
        .push_back(Call { name, debts });
    outage.reset(&store, &keys).await.unwrap();
    let call = outage.unanswered.lock().await.pop_front().unwrap();
    assert_eq!(call.debts.len(), 1, "the first bucket names the call");
    assert!(call.debts[0].records.is_empty());
    assert_eq!(outage.pending(), 1, "until it is answered");
    let rest = outage.send(&store, call).await;
    assert!(rest.debts.is_empty());
    assert_eq!(outage.pending(), 0);
}

/// A write-back that was under way reached the store after the reset.
#[tokio::test]
async fn a_reset_waits_for_a_write_back_that_is_under_way() {
    let (outage, store, _) = after_an_outage();
    let keys = ["owed".to_owned()];
    let under_way = outage.unanswered.lock().await;
    let reset = outage.reset(&store, &keys);
    tokio::pin!(reset);
    let early = timeout(Duration::from_millis(20), reset.as_mut());
    assert!(early.await.is_err());
    assert_eq!(outage.pending(), 1);
    drop(under_way);
    reset.await.unwrap();
    assert_eq!(outage.pending(), 0);
}
