//! Leases of several sidecars on one key, in generated worlds: nothing is ever over, what lies idle elsewhere when the store
//! denies is within the published bound, and every unit is accounted for.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::lease::{Grant, LeaseTerms, Pool, burst_with_leases};
use sluicegate_engine::{Algorithm, BucketSpec};

use super::lease_world::{MS, Phase, SECOND, SIDECARS, START_US, Seen, TERMS, World, new_run, run};
use super::made::{self, for_all, spec};
use super::receipts::Stores;

fn sliding(quota: u64, window_us: u64, precision_us: u64) -> BucketSpec {
    spec(made::sliding(precision_us, true), quota, window_us)
}

/// What the windows of a world are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sliding,
    Fixed,
    Bucket,
}

fn windows(kind: Kind) -> impl Strategy<Value = Vec<BucketSpec>> {
    let quota = prop_oneof![100u64..300, 300u64..1_000];
    let (long, precision) = (15 * SECOND..40 * SECOND, 900 * MS..7 * SECOND);
    let sliding_one = (quota.clone(), long, precision)
        .prop_map(|(quota, window_us, precision_us)| sliding(quota, window_us, precision_us));
    // The burst as the store enforces it: smaller by what drains in the longest time of a lease.
    let bucket_one = (200u64..2_000, 4 * SECOND..12 * SECOND, 0u64..300);
    let bucket_one = bucket_one.prop_map(|(quota, window_us, more)| {
        let of = |burst| spec(Algorithm::TokenBucket { burst }, quota, window_us);
        let burst = quota + more;
        of(burst_with_leases(burst, TERMS.longest_us, &of(burst)).expect("it is large"))
    });
    let fixed_one = (quota, 4 * SECOND..12 * SECOND)
        .prop_map(|(quota, window_us)| spec(Algorithm::FixedWindow, quota, window_us));
    let one = match kind {
        Kind::Sliding => sliding_one.boxed(),
        Kind::Fixed => fixed_one.boxed(),
        Kind::Bucket => bucket_one.boxed(),
    };
    prop::collection::vec(one, 1..3)
}

fn phases() -> impl Strategy<Value = Vec<Phase>> {
    let rate = prop_oneof![1 => Just(0u64), 2 => 1u64..8, 5 => 8u64..60, 2 => 60u64..250];
    let rates = [rate.clone(), rate.clone(), rate];
    let at_once = prop_oneof![3 => Just(1u64), 1 => 2u64..40];
    let cost = prop_oneof![4 => Just(1u64), 1 => 2u64..9];
    let phase = (2_000u64..15_000, rates, at_once, cost);
    let phase = phase.prop_map(|(for_ms, rates, at_once, cost)| Phase {
        for_ms,
        rates,
        at_once,
        cost,
    });
    prop::collection::vec(phase, 2..5)
}

fn worlds(kind: Kind, steps_back: bool) -> impl Strategy<Value = World> {
    let back = (1..5 * SECOND as i64).prop_map(|us| -us);
    let steps = prop::collection::vec((back, 5u64..95), 1..4);
    let crashes = prop::collection::vec((0..SIDECARS, 5u64..95), 0..3);
    (windows(kind), phases(), crashes, steps, any::<u64>()).prop_map(
        move |(windows, phases, crashes, steps, seed)| World {
            windows,
            phases,
            crashes,
            steps: if steps_back { steps } else { Vec::new() },
            noticed: false,
            seed,
        },
    )
}

/// Worlds of windows with edges, whose sidecars notice that the clock steps over an edge at most, back or forward.
fn stepped_worlds() -> impl Strategy<Value = World> {
    let step = (-4 * SECOND as i64..4 * SECOND as i64, 5u64..95);
    (worlds(Kind::Fixed, false), step).prop_map(|(world, step)| World {
        steps: vec![step],
        noticed: true,
        crashes: Vec::new(),
        ..world
    })
}

/// Runs generated worlds, 5 at a time or more, until together they have leased, asked the store, and met denials with units idle
/// elsewhere. A run of buckets whose clock steps back was seen whose first 25 had no idle unit.
fn run_all(worlds: impl Strategy<Value = World>) -> Seen {
    let stores = std::cell::RefCell::new(Stores::start());
    let total = std::cell::RefCell::new(Seen::default());
    for _ in 0..40 {
        for_all(5, 30, &worlds, |world| {
            let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run(&mut stores.borrow_mut(), &world)
            }));
            let seen = seen.map_err(|why| TestCaseError::fail(panic_text(&why)))?;
            total.borrow_mut().add(&seen);
            Ok(())
        });
        if lacks(&total.borrow()).is_none() {
            break;
        }
    }
    let total = total.into_inner();
    println!("measured: {total:?}");
    assert_eq!(lacks(&total), None, "{total:?}");
    total
}

/// What the worlds have not shown yet.
fn lacks(total: &Seen) -> Option<&'static str> {
    let leased = total.leased + total.by_filters;
    let needs = [
        (leased > total.by_store / 5, "leases"),
        (total.by_filters > total.leased / 2, "leases in filters"),
        (total.denials > 100, "denials"),
        (total.most_idle > 0, "units idle at a denial"),
    ];
    let unmet = needs.into_iter().find(|(met, _)| !met);
    unmet.map(|(_, what)| what)
}

fn panic_text(why: &Box<dyn std::any::Any + Send>) -> String {
    let text = why.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| "a panic".to_owned())
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
    stores.start_again();
    let world = World {
        windows: vec![sliding(40, moment.window_us, moment.precision_us)],
        ..World::default()
    };
    let mut run = new_run(stores, &world);
    let p = moment.precision_us;
    // The beginning of a step of the store, and a time in it.
    run.now = p - START_US % p + p / 1_000 * moment.taken_at + 1;
    let terms = LeaseTerms {
        longest_us: 10 * SECOND,
        ..TERMS
    };
    let outcome = run.decide(moment.units, Some(1));
    assert!(outcome.admitted);
    let length_us = terms.length_us(&world.windows, outcome.at_us);
    let mut pool = Pool::new(terms);
    pool.granted(Grant {
        units: moment.units,
        ends_us: run.now + length_us,
        remaining: outcome.remaining,
        tag: (),
    });
    let (begin, end) = (run.now, run.now + length_us);
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
        run.now = at;
        if let Some((_, us)) = step.filter(|(step_at, _)| *step_at <= at && !stepped) {
            run.store_ahead -= us;
            stepped = true;
        }
        // Half of it in its last moment. The other half is too late.
        let half = moment.units / 2;
        if spends.contains(&at) && pool.take(at, half, 0).is_some() {
            run.admit(half);
        }
        while run.decide(1, None).admitted {
            run.admit(1);
        }
    }
    run.check_never_over();
    let spent = run.admitted.iter().filter(|(.., units)| *units > 1).count();
    assert_eq!(spent, usize::from(length_us > 0), "the lease was spent");
}

fn check_last_moments(steps_back: bool) {
    let stores = std::cell::RefCell::new(Stores::start());
    for_all(10, 1_024, &last_moments(steps_back), |moment| {
        spend_in_the_last_moment(&mut stores.borrow_mut(), &moment);
        Ok(())
    });
}

#[test]
fn units_that_are_spent_in_the_last_moment_are_in_no_window_over() {
    check_last_moments(false);
}

#[test]
fn units_that_are_spent_after_the_clock_stepped_back_are_in_no_window_over() {
    check_last_moments(true);
}

#[test]
fn leases_are_never_over_and_idle_within_the_bound() {
    run_all(worlds(Kind::Sliding, false));
}

#[test]
fn leases_of_fixed_windows_are_never_over() {
    run_all(worlds(Kind::Fixed, false));
}

#[test]
fn a_step_over_an_edge_lets_no_more_be_over_than_leases_held_then() {
    run_all(stepped_worlds());
}

/// A window of 100 is used up, and 40 units are held in a lease of its neighbour when the clock steps into it, back or
/// forward. By how much it is over in the end.
fn over_after_a_step(forward: bool, answered_before: bool) -> u64 {
    let mut stores = Stores::start();
    stores.start_again();
    let window_us = 10 * SECOND;
    let world = World {
        windows: vec![spec(Algorithm::FixedWindow, 100, window_us)],
        noticed: true,
        ..World::default()
    };
    let mut run = new_run(&mut stores, &world);
    let edge = run.now + window_us - run.store_us() % window_us;
    let fill = |run: &mut super::lease_world::Run<'_>| {
        while run.decide(1, None).admitted {
            run.admit(1);
        }
    };
    run.now = edge - 500 * MS;
    if !forward {
        fill(&mut run);
        run.now = edge + 500 * MS;
    }
    let outcome = run.decide(40, Some(1));
    assert!(outcome.admitted);
    let now_us = run.clock(0);
    run.sidecars[0].pool.granted(Grant {
        units: 40,
        ends_us: now_us + TERMS.length_us(&world.windows, outcome.at_us),
        remaining: outcome.remaining,
        tag: 1,
    });
    run.step(if forward { 1 } else { -1 } * SECOND as i64);
    assert_eq!(run.held_at_steps, 40);
    if forward {
        fill(&mut run);
    }
    if answered_before {
        run.notice(0, 1);
    }
    let now_us = run.clock(0);
    if run.sidecars[0].pool.take(now_us, 40, 0).is_some() {
        run.admit(40);
    }
    run.check_never_over();
    run.seen.most_over
}

#[test]
fn what_leases_held_is_over_only_if_it_is_spent_before_an_answer_shows_the_step() {
    for forward in [false, true] {
        assert_eq!(over_after_a_step(forward, false), 40, "the bound");
        assert_eq!(over_after_a_step(forward, true), 0);
    }
}

#[test]
fn leases_are_never_over_when_the_clock_steps_back() {
    run_all(worlds(Kind::Sliding, true));
}

#[test]
fn leases_of_token_buckets_are_never_over() {
    run_all(worlds(Kind::Bucket, false));
}

#[test]
fn leases_of_token_buckets_are_never_over_when_the_clock_steps_back() {
    run_all(worlds(Kind::Bucket, true));
}
