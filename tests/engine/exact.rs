//! What comes back to a token bucket when receipts are settled: what would be there had each taking cost what was used.

use super::holds::Stores;
use super::lua::Lua;
use super::made::{self, SECOND, START_US, one};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::{Algorithm, Bucket, Guard, Held, Hold, Memory, Settlements};
use std::cell::{Cell, RefCell};

/// A unit drains in 20 s: the reset of a look is its level in microseconds, exactly.
const UNIT_US: u64 = 20 * SECOND;

fn bucket(burst: u64, quota: u64, window_us: u64) -> Bucket {
    made::bucket(
        "sg:{k}:l:tok",
        Algorithm::TokenBucket { burst },
        quota,
        window_us,
    )
}

fn taking(bucket: &Bucket, units: u64, receipt: usize) -> sluicegate_engine::Batch {
    let mut taken = one(bucket, units, false);
    taken.decisions[0].holds.push(Hold {
        key: format!("sg:{{k}}:hold:{receipt}"),
        units,
        lasts_us: 1 << 50,
        of: vec![Held::of(bucket)],
        is_receipt: true,
    });
    taken
}

fn settling(bucket: &Bucket, used: u64, receipt: usize) -> Settlements {
    let hold = format!("sg:{{k}}:hold:{receipt}");
    let mut settlements = Settlements::default();
    settlements.return_to(Guard::Settle { hold, used }, [bucket.clone()]);
    settlements
}

/// Case L9: 1,000 streams reserve 1,000 and use 100, and end in any order.
#[test]
fn after_a_thousand_streams_the_level_is_what_they_cost() {
    let mut stores = Stores::start();
    for (apart_us, quota, window_us) in [
        (0, 1_000_000, 86_400 * SECOND),
        (1_000, 1_000_000, 86_400 * SECOND),
        (1_000, 10_000_000, 3_600 * SECOND),
        (1_000, 1_000_000, 60 * SECOND),
    ] {
        for order in [1, 999, 387] {
            let bucket = bucket(1_000_000, quota, window_us);
            for number in 0..1_000 {
                let now = START_US + apart_us * number as u64;
                let taken = stores.decide(now, &taking(&bucket, 1_000, number));
                assert!(taken[0].admitted);
            }
            let mut now = START_US + SECOND;
            for number in 0..1_000 {
                // All of them, since the steps have no divisor in common with their number.
                let receipt = order * (number + 1) % 1_000;
                now += 5_000;
                stores.settle(now, &settling(&bucket, 100, receipt));
            }
            let drained = (now - START_US) * quota / window_us;
            let left = stores.decide(now, &one(&bucket, 0, true))[0].remaining;
            let level = 100_000_u64.saturating_sub(drained);
            assert_eq!(1_000_000 - left, level, "{apart_us} {quota} {order}");
            stores.start_again();
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Take { units: u64, used: Option<u64> },
    Settle { open: usize },
}

fn histories() -> impl Strategy<Value = Vec<(u64, Event)>> {
    // About as many units as drain meanwhile, so that what is lost where groups are joined shows.
    let later = prop_oneof![
        2 => Just(0),
        8 => 0..UNIT_US,
        1 => 0..10 * UNIT_US,
    ];
    let units = prop_oneof![3 => 1..4u64, 1 => 1..30u64];
    let take = (units, prop::option::weighted(0.9, 0..130u64));
    let take = take.prop_map(|(units, percent)| Event::Take {
        units,
        used: percent.map(|percent| units * percent / 100),
    });
    let settle = (0..50usize).prop_map(|open| Event::Settle { open });
    let event = prop_oneof![2 => take, 1 => settle];
    prop::collection::vec((later, event), 1..120)
}

/// The level if each taking has cost this.
fn as_if(costs: &[(u64, u64)], now: u64) -> u64 {
    let (mut level, mut as_of) = (0u64, START_US);
    for (at, units) in costs {
        level = level.saturating_sub(at - as_of) + units * UNIT_US;
        as_of = *at;
    }
    level.saturating_sub(now - as_of)
}

/// What happens to one bucket, in the embedded store and in the script, if there is one, which must agree: after each step its
/// level, and the least that it may be.
fn play(
    mut lua: Option<&mut Lua>,
    history: Vec<(u64, Event)>,
    mut seen: impl FnMut(u64, u64),
) -> Result<(), TestCaseError> {
    let bucket = bucket(10_000, 1, UNIT_US);
    let (mut memory, mut now) = (Memory::default(), START_US);
    let (mut costs, mut open) = (Vec::new(), Vec::new());
    if let Some(lua) = &mut lua {
        lua.forget_everything();
    }
    for (later, event) in history {
        now += later;
        match event {
            Event::Take { units, used } => {
                let batch = match used {
                    Some(_) => taking(&bucket, units, costs.len()),
                    None => one(&bucket, units, false),
                };
                let _ = memory.decide(now, &batch);
                if let Some(lua) = &mut lua {
                    lua.try_decide(Some(now), &batch)
                        .map_err(TestCaseError::fail)?;
                }
                open.extend(used.map(|used| (costs.len(), units, used)));
                costs.push((now, units));
            }
            Event::Settle { open: which } if which < open.len() => {
                let (receipt, units, used) = open.swap_remove(which);
                let settlements = settling(&bucket, used, receipt);
                let done = memory.settle(now, &settlements);
                if let Some(lua) = &mut lua {
                    prop_assert_eq!(lua.settle(Some(now), &settlements), Ok(done));
                }
                costs[receipt].1 = used.min(units);
                if used > units {
                    costs.push((now, used - units));
                }
            }
            Event::Settle { .. } => {}
        }
        let look = one(&bucket, 0, true);
        let outcome = memory.decide(now, &look).remove(0).expect("room");
        if let Some(lua) = &mut lua {
            prop_assert_eq!(lua.try_decide(Some(now), &look), Ok(vec![outcome]));
        }
        seen(outcome.reset_us, as_if(&costs, now));
    }
    Ok(())
}

/// Whether the script does something else than the embedded store.
pub fn receipts_differ(lua: &mut Lua, cases: u32) -> bool {
    let lua = RefCell::new(lua);
    made::is_refuted(cases, &histories(), |history| {
        play(Some(&mut lua.borrow_mut()), history, |_, _| ())
    })
}

#[test]
fn the_script_and_the_embedded_store_agree_about_receipts() {
    assert!(!receipts_differ(&mut Lua::start(), 50 * made::more_cases()));
}

#[test]
fn no_more_comes_back_than_was_not_used_and_nearly_always_all_of_it() {
    let (steps, short) = (Cell::new(0u64), Cell::new(0u64));
    made::for_all(2_000, 20_000, &histories(), |history| {
        let text = format!("{history:?}");
        let over = Cell::new(false);
        play(None, history, |level, least| {
            over.set(over.get() || level < least);
            steps.set(steps.get() + 1);
            short.set(short.get() + u64::from(level > least));
        })?;
        prop_assert!(!over.get(), "{text}");
        Ok(())
    });
    assert!(short.get() * 40 < steps.get(), "{short:?} of {steps:?}");
}
