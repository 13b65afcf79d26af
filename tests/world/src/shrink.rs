//! The same fault with fewer events, so that a person can read it.

use super::judge::judge;
use super::run::run;
use super::script::{Event, World};

/// Removes events, and makes loads smaller, as long as something of this kind is wrong.
pub fn shrink(world: &World, kind: &str) -> World {
    let fails = |world: &World| {
        let (wrong, _) = judge(world, &run(world, false));
        wrong.iter().any(|one| one.kind == kind)
    };
    let mut small = world.clone();
    let mut chunk = small.events.len().div_ceil(2).max(1);
    loop {
        let mut from = 0;
        while from < small.events.len() {
            let mut less = small.clone();
            less.events
                .drain(from..(from + chunk).min(less.events.len()));
            if fails(&less) {
                small = less;
            } else {
                from += chunk;
            }
        }
        if chunk == 1 {
            break;
        }
        chunk = chunk.div_ceil(2);
    }
    for index in 0..small.events.len() {
        loop {
            let mut less = small.clone();
            let Event::Ask { times, .. } = &mut less.events[index].1 else {
                break;
            };
            if *times < 2 {
                break;
            }
            *times = times.div_ceil(2);
            if !fails(&less) {
                break;
            }
            small = less;
        }
    }
    small
}
