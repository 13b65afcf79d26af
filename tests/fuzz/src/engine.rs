//! The engine: generated histories through the model and the engine in Rust, which must agree to the microsecond. With Lua, on
//! a real Redis, that is a hundred times slower: so the fuzzer looks for new code without it, and what it keeps goes through
//! all three.

use sluicegate_engine::{Algorithm, BucketSpec, Calendar, CalendarUnit};

use crate::events::{Ask, Clock, History, Step, WINDOWS_US, ZONES};
use crate::input::Input;
use crate::replay::{replay, replay_with};
use crate::with_script;

/// As many as the histories of `make engine` have.
const MAX_STEPS: usize = 80;

pub fn without_lua(data: &[u8]) {
    if let Err(why) = replay_with(None, &history(data)) {
        panic!("{why}\n{:#?}", history(data));
    }
}

pub fn with_lua(data: &[u8]) {
    if let Err(why) = with_script(|lua| replay(lua, &history(data))) {
        panic!("{why}\n{:#?}", history(data));
    }
}

fn history(data: &[u8]) -> History {
    let input = &mut Input::new(data);
    let buckets = 1 + input.below(3);
    let world = (0..buckets).map(|_| spec(input)).collect();
    let block = input.pick(&[2, 3, 18]);
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < MAX_STEPS {
        steps.push(step(input));
    }
    History {
        world,
        block,
        steps,
    }
}

fn spec(input: &mut Input<'_>) -> BucketSpec {
    let quota = quota(input);
    let window_us = WINDOWS_US.start + input.up_to(WINDOWS_US.end - WINDOWS_US.start - 1);
    let algorithm = match input.byte() % 6 {
        0 => Algorithm::SlidingLog,
        kind @ 1..=2 => Algorithm::SlidingWindow {
            precision_us: 1 + input.up_to(WINDOWS_US.start - 1),
            leased: kind == 2,
        },
        3 => Algorithm::FixedWindow,
        4 => Algorithm::TokenBucket {
            burst: 1 + input.up_to(2_999),
        },
        _ => {
            let unit = input.pick(&CalendarUnit::ALL);
            let calendar = Calendar::new(unit, input.pick(&ZONES)).expect("a zone");
            return BucketSpec {
                algorithm: Algorithm::CalendarWindow(calendar),
                quota,
                window_us: calendar.longest_us(),
            };
        }
    };
    BucketSpec {
        algorithm,
        quota,
        window_us,
    }
}

fn quota(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        255 => 2_000_000_000,
        small => 1 + u64::from(small),
    }
}

fn cost(input: &mut Input<'_>) -> u64 {
    match input.byte() {
        255 => 1_000_000_000,
        small => u64::from(small),
    }
}

fn step(input: &mut Input<'_>) -> Step {
    let kind = input.byte();
    if kind >= 240 {
        return Step::Reburst {
            bucket: input.below(4),
            burst: quota(input),
        };
    }
    match kind % 12 {
        0..=3 => {
            let asks = 1 + input.below(4);
            Step::Ask((0..asks).map(|_| ask(input)).collect())
        }
        4 => Step::Run {
            bucket: input.below(4),
            times: 1 + input.byte() % 24,
            pause_us: input.up_to(999_999),
            cost: 1 + u64::from(input.byte() % 3),
            receipts: kind & 16 > 0,
        },
        5..=7 => Step::Clock(clock(input)),
        8 => Step::GiveBack {
            ago: input.below(40),
            cost: cost(input),
        },
        9 => Step::WriteBack {
            bucket: input.below(4),
            taken: input.list(6, |input| (i64::from(input.byte() % 160) - 30, cost(input))),
        },
        10 => Step::Reset(input.below(4)),
        _ => Step::Relimit {
            bucket: input.below(4),
            limit: quota(input),
        },
    }
}

fn ask(input: &mut Input<'_>) -> Ask {
    let takes = 1 + input.below(3);
    let takes = (0..takes).map(|_| (input.below(4), cost(input))).collect();
    let how = input.byte();
    Ask {
        takes,
        peek: how % 8 == 7,
        receipts: how & 8 > 0,
    }
}

fn clock(input: &mut Input<'_>) -> Clock {
    match input.byte() % 8 {
        0 | 1 => Clock::ForwardUs(input.up_to(999_999)),
        2 | 3 => Clock::Windows {
            bucket: input.below(4),
            percent: input.below(250) as u64,
        },
        4 => Clock::Promised,
        5 => Clock::JustBeforePromised,
        6 => Clock::BackWindows {
            bucket: input.below(4),
            percent: input.below(250) as u64,
        },
        _ => Clock::BackUs(input.up_to(999_999)),
    }
}
