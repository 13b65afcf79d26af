//! Tests of the leases by key: what a store grants is made up here.

use std::cell::Cell;

use sluicegate_engine::Outcome;
use sluicegate_protocol::{LeasePart, LimitStatus, PartReport};

use super::*;
use crate::policy::Policy;
use crate::telemetry::metrics::{Metrics, PolicyMetrics};

struct World {
    limit: Arc<Limit>,
    metrics: PolicyMetrics,
    leases: Arc<Leases>,
}

fn world() -> World {
    let text = "limits: { l: { algorithm: fixed_window, windows: [{ quota: 9000, per: 24h }], lease: { longest: 10s } } }";
    let policy = Policy::parse(text).unwrap();
    World {
        limit: Arc::clone(policy.limit("l").unwrap()),
        metrics: Metrics::new().unwrap().policy_loaded(1, &policy),
        leases: Leases::new(Some(Duration::from_millis(20))),
    }
}

fn outcome(admitted: bool, remaining: u64) -> Outcome {
    Outcome {
        admitted,
        decided_by: 0,
        remaining,
        over: 0,
        reset_us: 60_000_000,
        retry_after_us: u64::from(!admitted),
        ended: 0,
        at_us: 1_790_000_000_000_000,
    }
}

impl World {
    fn check<'a>(&'a self, key: &'a str, cost: u64) -> EffectiveCheck<'a> {
        let limit = &self.limit;
        EffectiveCheck::of(limit, key, cost)
    }

    fn take(&self, key: &str, cost: u64, epoch: u64) -> Option<Reservation> {
        self.leases.take(self.check(key, cost), epoch, true)
    }

    /// What the store says of this cost for a key; the key's limit denied or did not.
    fn note_denied(&self, cost: u64, remaining: u64, by_this_limit: bool) {
        let denied = outcome(false, remaining);
        let check = self.check("k", cost);
        self.leases.note(check, 1, &denied, by_this_limit);
    }

    /// A lease of 100 units for a key that was asked for.
    fn grant(&self, key: &str, epoch: u64) {
        assert!(self.take(key, 1, epoch).is_none());
        let outcome = outcome(true, 5_000);
        let lease_key = self.check(key, 1).under(epoch);
        let metrics = self.metrics.leases("l").unwrap();
        let asked = Lease::new(lease_key, 100, 7, metrics);
        let grant = asked.grant(Some(&outcome), clock::now_us());
        assert_eq!(useless_because(&grant, clock::now_us()), None);
        grant.tag.metrics.count_granted(grant.units);
        let mut shard = self.leases.shard(key);
        shard.get_mut("l", key).unwrap().pool.granted(grant);
    }

    /// A lease that a call for this key would take along.
    fn along(&self, key: &str) -> Option<Along> {
        let basis = LeaseBasis {
            leases: &self.leases,
            epoch: 1,
            metrics: &self.metrics,
            store_us: &|_| Some(1_790_000_000_000_000),
        };
        basis.along(self.check(key, 1))
    }

    /// What the keeper has to do.
    fn commands(&self) -> Vec<Command> {
        let mut received = self.leases.received.try_lock().unwrap();
        std::iter::from_fn(|| received.try_recv().ok()).collect()
    }

    /// A filter wants more units of key `k`.
    fn more(&self, per_s: u64, held: u64) -> PartRequest {
        let key = self.check("k", 1).under(1);
        PartRequest { key, per_s, held }
    }

    fn lend_more(&self, more: &PartRequest) -> Option<LeasePart<'static>> {
        let per_s = Some(more.per_s);
        self.leases.lend("l", "k", 1, per_s, more.held)
    }

    /// Units that leases hold: neither spent nor lent.
    fn held(&self) -> u64 {
        let of_shard = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            let pools = shard.by_limit.values().flat_map(HashMap::values);
            pools.map(|entry| entry.pool.held()).sum::<u64>()
        };
        self.leases.shards.iter().map(of_shard).sum()
    }
}

#[test]
fn units_are_spent_or_put_back() {
    let world = world();
    world.grant("k", 1);
    let mut held = world.take("k", 30, 1).unwrap();
    let status = held.status(0).unwrap();
    assert_eq!((status.remaining, status.quota), (5_070, 9_000));
    assert_eq!(status.window_ms, 86_400_000);
    // Of a minute, on a machine that may stall.
    assert!((50_000..=60_000).contains(&status.reset_ms));
    held.spend();
    drop(held);
    assert_eq!(world.held(), 70);
    drop(world.take("k", 30, 1).unwrap());
    assert_eq!(world.held(), 70, "put back");
    assert!(world.take("other", 1, 1).is_none());
    assert!(world.take("k", 71, 1).is_none());
}

#[test]
fn what_is_put_back_late_reaches_no_other_lease() {
    let world = world();
    world.grant("k", 1);
    let held = world.take("k", 30, 1).unwrap();
    let mut shard = world.leases.shard("k");
    let ended = shard.get_mut("l", "k").unwrap().pool.ended(u64::MAX);
    assert_eq!(ended[0].units, 70);
    shard.sweep(clock::now_us() + 20_000_000);
    assert_eq!(shard.keys, 0, "the key is forgotten");
    drop(shard);
    world.grant("k", 1);
    drop(held);
    assert_eq!(world.held(), 100, "what the store has granted");
    let mut received = world.leases.received.try_lock().unwrap();
    let Ok(Command::Return(late)) = received.try_recv() else {
        panic!("they are returned");
    };
    assert_eq!(late.units, 30);
}

#[test]
fn a_question_takes_a_lease_along_once_a_key_is_warm() {
    let world = world();
    assert!(world.take("k", 1, 1).is_none());
    assert!(world.along("k").is_none(), "what is left is not known yet");
    let check = world.check("k", 1);
    world.leases.note(check, 1, &outcome(true, 8_000), true);
    assert!(world.take("k", 1, 1).is_none());
    // Two requests a moment ago: one a second, and ten seconds.
    let along = world.along("k").unwrap();
    assert!(world.along("k").is_none(), "it is asked for");
    along.settle(&[], 1);
    let returned = world.commands();
    assert!(matches!(&returned[..], [Command::Return(units)] if units.units > 0));
    let mut shard = world.leases.shard("k");
    let pool = &mut shard.get_mut("l", "k").unwrap().pool;
    assert!(!pool.may_ask(clock::now_us()), "a pause");
    pool.start_again(world.limit.lease.unwrap());
    pool.note_remaining(8_000);
    assert!(pool.may_ask(clock::now_us() + 1_000_000));
}

#[test]
fn what_a_caller_leaves_behind_is_returned() {
    let world = world();
    let check = world.check("k", 5);
    for _ in 0..2 {
        assert!(world.take("k", 5, 1).is_none());
        world.leases.note(check, 1, &outcome(true, 8_000), true);
    }
    drop(world.along("k").unwrap());
    assert!(matches!(&world.commands()[..], [Command::Return(_)]));
    let shard = world.leases.shard("k");
    let pool = &shard.by_limit["l"]["k"].pool;
    assert!(!pool.is_asking(), "another question may ask");
}

#[test]
fn another_epoch_spends_nothing_of_an_earlier_one() {
    let world = world();
    world.grant("k", 1);
    assert!(world.take("k", 1, 2).is_none());
    assert_eq!(world.held(), 100, "until it is returned");
    world.grant("k", 2);
    // A request that began before.
    assert!(world.take("k", 1, 1).is_none());
    assert!(world.take("k", 1, 2).is_some());
}

#[test]
fn a_denial_ends_the_leases_that_caused_it_and_no_others() {
    let world = world();
    world.grant("k", 1);
    world.note_denied(8_000, 5_000, true);
    assert!(world.take("k", 1, 1).is_some(), "it could not have helped");
    world.note_denied(60, 3, false);
    assert!(world.take("k", 1, 1).is_some(), "another limit denied");
    world.note_denied(60, 3, true);
    assert!(world.take("k", 1, 1).is_none());
}

#[test]
fn keys_are_bounded_and_idle_ones_make_room() {
    let world = world();
    for number in 0..3 * SHARDS * MAX_KEYS {
        assert!(world.take(&number.to_string(), 1, 1).is_none());
    }
    let keys = || {
        let shards = world.leases.shards.iter();
        shards.map(|shard| lock(shard).keys).sum::<usize>()
    };
    assert!(keys() <= SHARDS * MAX_KEYS);
    let mut shard = lock(&world.leases.shards[0]);
    let later_us = clock::now_us() + 20_000_000;
    shard.sweep(later_us);
    assert_eq!((shard.keys, shard.by_limit.len()), (0, 0));
}

/// What a filter reports of a part.
fn report(id: u64, spent: u64, ended: bool, wants_per_s: u64) -> PartReport {
    PartReport {
        id,
        spent,
        decisions: spent,
        ended,
        wants_per_s,
    }
}

impl World {
    fn lend(&self, key: &str, epoch: u64) -> Option<LeasePart<'static>> {
        self.leases.lend("l", key, epoch, None, 0)
    }

    /// Units that were spent, and units that are held, as the metrics have them.
    fn spent_and_held(&self) -> (u64, u64) {
        let metrics = self.metrics.leases("l").unwrap();
        (metrics.spent.get(), metrics.held())
    }
}

#[test]
fn what_a_filter_tells_is_counted_once_and_the_rest_comes_back() {
    let world = world();
    world.grant("k", 1);
    assert!(world.lend("other", 1).is_none() && world.lend("k", 2).is_none());
    let more = world.more(5, 0);
    let part = world.lend_more(&more).unwrap();
    assert_eq!((part.limit.as_ref(), part.key.as_ref()), ("l", "k"));
    assert_eq!((part.quota, part.remaining), (9_000, 5_100 - part.units));
    // Five a second and seven more, on a machine that may stall.
    assert!((1_000_000..10_000_000).contains(&part.lasts_us));
    let lasts_s = part.lasts_us / 1_000_000;
    assert!(
        (5 * lasts_s..5 * lasts_s + 13).contains(&part.units),
        "{part:?}"
    );
    assert_eq!(world.spent_and_held(), (0, 100), "lent is held");
    let counted = Cell::new(0);
    let account = |report| {
        counted.set(0);
        let count = |_: &LimitStatus<'_>, key: &str, decisions| {
            assert_eq!(key, "k");
            counted.set(counted.get() + decisions);
        };
        world.leases.account(&[report], count)
    };
    for _ in 0..2 {
        let wanted = account(report(part.id, 10, false, 0));
        assert!(wanted.is_empty());
        assert_eq!(world.spent_and_held(), (10, 90), "a total");
    }
    let wanted = account(report(part.id, 12, true, 7));
    assert_eq!((counted.get(), wanted.len()), (2, 1));
    assert_eq!(world.spent_and_held(), (12, 88));
    assert_eq!(world.held(), 88, "it is in the lease again");
    let wanted = account(report(part.id, 40, true, 7));
    assert!(counted.get() == 0 && wanted.is_empty(), "it is over");
    account(report(1, 40, true, 7));
    assert_eq!(world.spent_and_held(), (12, 88), "an unknown part");
}

#[test]
fn a_filter_cannot_spend_more_than_it_was_lent() {
    let world = world();
    world.grant("k", 1);
    let more = world.more(1_000, 0);
    let part = world.lend_more(&more).unwrap();
    assert_eq!(part.units, 100);
    assert!(world.lend_more(&more).is_none(), "nothing is left");
    let reports = [report(part.id, u64::MAX, true, 0)];
    world.leases.account(&reports, |_, _, _| {});
    assert_eq!(world.spent_and_held(), (100, 0));
}

#[tokio::test]
async fn a_filter_that_wants_more_waits_for_the_keeper_and_for_nothing_else() {
    let world = world();
    world.grant("k", 1);
    let more = |per_s| [world.more(per_s, 0)];
    assert!(world.leases.prepare(&[]).is_none());
    assert!(world.leases.prepare(&more(10)).is_none(), "it is there");
    let notified = world.leases.prepare(&more(1_000)).unwrap();
    let mut received = world.leases.received.lock().await;
    assert!(matches!(received.try_recv(), Ok(Command::Renew { .. })));
    drop(received.try_recv());
    assert!(notified.await.is_err(), "the keeper has done what it could");
}
