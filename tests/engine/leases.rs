//! A lease that is spent in its last microsecond, and one that is spent after the clock has stepped over an edge. Several sidecars
//! and filters with leases are in `tests/world`.

use proptest::prelude::*;
use sluicegate_engine::lease::{Grant, LeaseTerms, Pool};
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome, Take};

use super::holds::Stores;
use super::made::{self, for_all, numbered, spec};

const SECOND: u64 = 1_000_000;
/// The store's clock when the others are 0.
const START_US: u64 = 1_790_000_000_000_000;
const TERMS: LeaseTerms = LeaseTerms {
    longest_us: 10 * SECOND,
};

/// A key whose store's clock may step.
struct Key<'a> {
    stores: &'a mut Stores,
    bucket: Bucket,
    now: u64,
    ahead: u64,
    /// Real time, the store's time, and units.
    admitted: Vec<(u64, u64, u64)>,
}

impl Key<'_> {
    fn decide(&mut self, cost: u64) -> Outcome {
        let batch = Batch {
            buckets: vec![self.bucket.clone()],
            decisions: vec![Decision {
                takes: vec![Take { bucket: 0, cost }],
                peek: false,
                asks: false,
                holds: Vec::new(),
                slots: Vec::new(),
            }],
        };
        self.stores.decide(self.now + self.ahead, &batch)[0]
    }

    fn admit(&mut self, units: u64) {
        let store_us = self.now + self.ahead;
        self.admitted.push((self.now, store_us, units));
    }

    /// Takes what is left, unit by unit.
    fn use_up(&mut self) {
        while self.decide(1).admitted {
            self.admit(1);
        }
    }

    /// A lease that was taken now.
    fn lease(&mut self, units: u64) -> (Pool<()>, u64) {
        let outcome = self.decide(units);
        assert!(outcome.admitted);
        let length_us = TERMS.length_us(&[self.bucket.spec], outcome.at_us);
        let mut pool = Pool::new(TERMS);
        pool.granted(Grant {
            units,
            ends_us: self.now + length_us,
            remaining: outcome.remaining,
            tag: (),
        });
        (pool, length_us)
    }
}

fn key(stores: &mut Stores, spec: BucketSpec, now: u64) -> Key<'_> {
    stores.start_again();
    Key {
        stores,
        bucket: numbered("hot", [spec]).remove(0),
        now,
        ahead: START_US,
        admitted: Vec::new(),
    }
}

/// A lease that is spent in its last microsecond, in a store that is full all the time.
#[derive(Clone, Debug)]
struct LastMoment {
    precision_us: u64,
    window_us: u64,
    /// When the units are taken, in thousandths of a step.
    taken_at: u64,
    units: u64,
    /// The clock steps back by so much, so many thousandths of the lease's time after it was taken.
    step: Option<(u64, u64)>,
}

fn last_moments(steps_back: bool) -> impl Strategy<Value = LastMoment> {
    let step = (1u64..8 * SECOND, 0u64..1_000);
    (SECOND..3 * SECOND, 4u64..8, 0u64..1_000, 8u64..20, step).prop_map(
        move |(precision_us, steps, taken_at, units, step)| LastMoment {
            precision_us,
            window_us: precision_us * steps + 7,
            taken_at,
            units,
            step: steps_back.then_some(step),
        },
    )
}

fn spend_in_the_last_moment(stores: &mut Stores, moment: &LastMoment) {
    let p = moment.precision_us;
    // The beginning of a step of the store, and a time in it.
    let begin = p - START_US % p + p / 1_000 * moment.taken_at + 1;
    let window = spec(made::sliding(p, true), 40, moment.window_us);
    let mut key = key(stores, window, begin);
    let (mut pool, length_us) = key.lease(moment.units);
    let end = begin + length_us;
    let step_at = |(us, part)| (begin + length_us / 1_000 * part, us);
    let step = moment.step.map(step_at);
    let until = begin + 3 * moment.window_us;
    // Late by up to two steps, in case the pool lets units be spent then.
    let spends = [end.saturating_sub(1), end + 1, end + p / 2, end + 2 * p];
    let steady = (0..).map(|n| begin + n * p / 16);
    let mut times: Vec<u64> = steady.take_while(|at| *at < until).collect();
    times.extend(spends.into_iter().filter(|at| *at >= begin));
    times.extend(step.map(|(at, _)| at));
    times.sort_unstable();
    let mut stepped = false;
    for at in times {
        key.now = at;
        if let Some((_, us)) = step.filter(|(step_at, _)| *step_at <= at && !stepped) {
            key.ahead -= us;
            stepped = true;
        }
        // Half of it in its last moment. The other half is too late.
        let half = moment.units / 2;
        if spends.contains(&at) && pool.take(at, half, 0).is_some() {
            key.admit(half);
        }
        key.use_up();
    }
    for (first, &(from, ..)) in key.admitted.iter().enumerate() {
        let inside = key.admitted[first..]
            .iter()
            .take_while(|one| one.0 < from + moment.window_us);
        let sum: u64 = inside.map(|one| one.2).sum();
        assert!(sum <= 40, "{sum} of 40 from {from}");
    }
    let spent = key.admitted.iter().filter(|(.., units)| *units > 1).count();
    assert_eq!(spent, usize::from(length_us > 0), "the lease was spent");
}

#[test]
fn units_that_are_spent_in_the_last_moment_are_in_no_window_over() {
    let stores = std::cell::RefCell::new(Stores::start());
    for steps_back in [false, true] {
        for_all(10, 512, &last_moments(steps_back), |moment| {
            spend_in_the_last_moment(&mut stores.borrow_mut(), &moment);
            Ok(())
        });
    }
}

/// A window of 100 is used up, and 40 units are held in a lease of its neighbour when the clock steps into it, back or
/// forward. By how much it is over in the end.
fn over_after_a_step(forward: bool, answered_before: bool) -> u64 {
    let window_us = 10 * SECOND;
    let mut stores = Stores::start();
    let edge = window_us - START_US % window_us + window_us;
    let window = spec(Algorithm::FixedWindow, 100, window_us);
    let mut key = key(&mut stores, window, edge - SECOND / 2);
    if !forward {
        key.use_up();
        key.now = edge + SECOND / 2;
    }
    let (mut pool, _) = key.lease(40);
    if forward {
        key.ahead += SECOND;
        key.use_up();
    } else {
        key.ahead -= SECOND;
    }
    if answered_before {
        pool.end_all();
    }
    if pool.take(key.now, 40, 0).is_some() {
        key.admit(40);
    }
    let inside = (key.now + key.ahead) / window_us;
    let of_it = key
        .admitted
        .iter()
        .filter(|one| one.1 / window_us == inside);
    of_it.map(|one| one.2).sum::<u64>() - 100
}

#[test]
fn what_leases_held_is_over_only_if_it_is_spent_before_an_answer_shows_the_step() {
    for forward in [false, true] {
        assert_eq!(over_after_a_step(forward, false), 40, "the bound");
        assert_eq!(over_after_a_step(forward, true), 0);
    }
}
