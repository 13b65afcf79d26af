//! The sizes that docs/sizing.md computes, compared with MEMORY USAGE; and that a log does not grow while it is in use.

use super::expiry::every_algorithm;
use super::lua::Lua;
use super::made::{SECOND, START_US, one};
use redis::Commands;
use sluicegate_engine::{Algorithm, Bucket, Guard, Settlements, SlotId};

/// Bytes of a bucket, as the document computes them.
fn estimate(bucket: &Bucket, entries: u64) -> u64 {
    let key = 56 + (bucket.key.len() as u64 + 4).next_multiple_of(8);
    match (bucket.spec.algorithm, entries) {
        (Algorithm::FixedWindow | Algorithm::CalendarWindow(_), _) => key,
        (Algorithm::TokenBucket { .. }, _) => key + 16,
        (_, ..3) => key + 43 + 10 * entries,
        _ => key + 170 + 14 * entries,
    }
}

#[test]
fn the_estimate_is_within_a_quarter_of_what_redis_uses() {
    let mut lua = Lua::start();
    let mut wrong = Vec::new();
    for mut bucket in every_algorithm(1_000_000 * SECOND) {
        bucket.spec.quota = 2_000_000;
        let (mut entries, mut apart_us) = (0, 1);
        match &mut bucket.spec.algorithm {
            Algorithm::SlidingWindow { precision_us, .. } => {
                (*precision_us, apart_us) = (SECOND, SECOND);
            }
            Algorithm::TokenBucket { burst } => *burst = 2_000_000,
            _ => {}
        }
        for size in [1, 10, 1_000, 20_000] {
            fill(&mut lua, &bucket, entries, size, apart_us);
            entries = size;
            let measured: Option<u64> = lua.ask(&["MEMORY", "USAGE", &bucket.key, "SAMPLES", "0"]);
            let measured = measured.expect("the key is there") as f64;
            let estimate = estimate(&bucket, entries) as f64;
            if !(0.75..=1.25).contains(&(estimate / measured)) {
                let algorithm = bucket.spec.algorithm;
                wrong.push(format!(
                    "{algorithm:?}, {entries}: {estimate}, not {measured}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_estimate_for_slots_likewise() {
    let mut lua = Lua::start();
    let bucket = super::made::bucket(
        "sg:{subject}:slots",
        Algorithm::Slots,
        1_000_000,
        86_400 * SECOND,
    );
    let key = 56 + (bucket.key.len() as u64 + 4).next_multiple_of(8);
    let mut slots = 0;
    for size in [1, 10, 128, 200, 2_000] {
        for number in slots..size {
            let id = SlotId::new(1, START_US, 7, SECOND, u128::from(number) << 64);
            let mut renewal = Settlements::default();
            renewal.return_to(Guard::Renew(id), [bucket.clone()]);
            lua.settle(Some(START_US), &renewal).unwrap();
        }
        slots = size;
        let measured: Option<u64> = lua.ask(&["MEMORY", "USAGE", &bucket.key, "SAMPLES", "0"]);
        let measured = measured.expect("the key is there") as f64;
        let estimate = (key + slots * if slots > 128 { 125 } else { 40 }) as f64;
        assert!(
            (0.75..=1.25).contains(&(estimate / measured)),
            "{slots}: {estimate}, not {measured}"
        );
    }
}

/// Blocks whose records have all expired are deleted while the log is in use, not only when its key expires.
#[test]
fn a_busy_log_keeps_the_blocks_of_one_window() {
    // Of lua/algorithms/log.lua.
    const BLOCK: u64 = 18;
    const BLOCKS: u64 = 10;
    let mut lua = Lua::start();
    let window_us = BLOCKS * BLOCK * SECOND;
    for mut bucket in every_algorithm(window_us).drain(..2) {
        if let Algorithm::SlidingWindow { precision_us, .. } = &mut bucket.spec.algorithm {
            *precision_us = SECOND;
        }
        bucket.spec.quota = 2_000_000;
        fill(&mut lua, &bucket, 0, 10 * BLOCKS * BLOCK, SECOND);
        let fields: u64 = lua.connection.hlen(&bucket.key).expect("an answer");
        // The head, with the open block; a window of ten blocks may begin and end inside one.
        let expected = BLOCKS..=1 + BLOCKS + 1;
        assert!(expected.contains(&fields), "{}: {fields}", bucket.key);
    }
}

/// Admits one request at a time until the log has this many entries.
fn fill(lua: &mut Lua, bucket: &Bucket, from: u64, to: u64, apart_us: u64) {
    let times: Vec<u64> = (from..to).map(|n| START_US + n * apart_us).collect();
    for chunk in times.chunks(1_000) {
        lua.decide_all(chunk, &one(bucket, 1, false));
    }
}
