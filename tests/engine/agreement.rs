//! Generated histories, each through model, Rust and Lua. `SLUICEGATE_STEPS` says how many calls an
//! algorithm gets: 5,000 in `make test`, a million in `make engine-long`.

use super::history::{Kind, histories};
use super::lua::Lua;
use super::made::for_all;
use super::replay::replay;
use proptest::test_runner::TestCaseError;
use std::cell::{Cell, RefCell};

fn agrees(kind: Kind) {
    let wanted = std::env::var("SLUICEGATE_STEPS").unwrap_or_else(|_| "5000".to_owned());
    let wanted: u64 = wanted.parse().expect("SLUICEGATE_STEPS is a number");
    let lua = RefCell::new(Lua::start());
    let calls = Cell::new(0u64);
    while calls.get() < wanted {
        for_all(25, 20_000, &histories(kind), |history| {
            let outcome = replay(&mut lua.borrow_mut(), &history);
            let agreed = outcome.map_err(|why| format!("keep this history in kept.rs: {why}"));
            calls.set(calls.get() + agreed.map_err(TestCaseError::fail)?);
            Ok(())
        });
    }
}

#[test]
fn sliding_log_agrees_with_the_model() {
    agrees(Kind::SlidingLog);
}

#[test]
fn sliding_window_agrees_with_the_model() {
    agrees(Kind::SlidingWindow);
}

#[test]
fn a_leased_sliding_window_agrees_with_the_model() {
    agrees(Kind::LeasedWindow);
}

#[test]
fn fixed_window_agrees_with_the_model() {
    agrees(Kind::FixedWindow);
}

#[test]
fn calendar_window_agrees_with_the_model() {
    agrees(Kind::CalendarWindow);
}

#[test]
fn token_bucket_agrees_with_the_model() {
    agrees(Kind::TokenBucket);
}

#[test]
fn a_mix_of_algorithms_agrees_with_the_model() {
    agrees(Kind::Mixed);
}
