//! A log's memory in Redis, and a call's time independent of it.

use crate::rig::{Rig, SECOND, batch, spec};
use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_tests_full::report::Report;

const HOUR: u64 = 3_600 * SECOND;
/// Any time; these scenarios own the clock.
const START_US: u64 = 1_790_000_000_000_000;
const LARGE: u64 = 100_000;

/// Bytes of a log and of a sorted set after the same requests.
pub fn bytes(rig: &mut Rig, report: &mut Report) {
    for (name, cost, requests, goal) in [
        ("cost 1, 1,000 entries", 1, 1_000, 8.0),
        ("cost 100, 1,000 requests", 100, 1_000, 100.0),
    ] {
        rig.empty();
        let log = spec(Algorithm::SlidingLog, 1_000_000, HOUR);
        let ours = rig.decide(&batch("log", log, cost, 1), None);
        let theirs = rig.yardstick(&rig.zset, "zset", [1_000_000, HOUR, cost]);
        // One by one, so that no two share a microsecond, which would be one entry.
        for _ in 0..requests {
            rig.wire.flood(std::slice::from_ref(&ours), 1);
            rig.wire.flood(std::slice::from_ref(&theirs), 1);
        }
        let [log, zset] = ["log", "zset"].map(|key| rig.bytes(key) / requests as f64);
        report.figure(&format!("sliding_log, {name}"), log, "bytes/request");
        report.figure(&format!("sorted set, {name}"), zset, "bytes/request");
        let name = format!("sorted set over sliding_log, bytes, {name}");
        report.at_least(&name, zset / log, goal);
    }
}

fn log(limit: u64) -> BucketSpec {
    spec(Algorithm::SlidingLog, limit, HOUR)
}

/// Fills a log with that many entries, a millisecond apart; the time of the last.
fn fill(rig: &mut Rig, key: &str, entries: u64) -> u64 {
    let one = batch(key, log(LARGE * 10), 1, 1);
    let call = |n| rig.decide(&one, Some(START_US + n * 1_000));
    let calls: Vec<Vec<u8>> = (0..entries).map(call).collect();
    rig.wire.flood(&calls, calls.len());
    START_US + (entries - 1) * 1_000
}

/// Microseconds of Redis's own for each of 2,000 calls, a millisecond apart from `from` on.
fn each(rig: &mut Rig, key: &str, limit: u64, from: u64) -> f64 {
    let call = |n: u64| rig.decide(&batch(key, log(limit), 1, 1), Some(from + n * 1_000));
    let calls: Vec<Vec<u8>> = (0..2_000u64).map(call).collect();
    rig.script_us();
    rig.wire.flood(&calls, calls.len());
    let (us, count) = rig.script_us();
    us / count
}

/// Microseconds of one call.
fn once(rig: &mut Rig, key: &str, cost: u64, now: u64) -> f64 {
    let call = rig.decide(&batch(key, log(LARGE * 10), cost, 1), Some(now));
    rig.script_us();
    rig.wire.flood(&[call], 1);
    rig.script_us().0
}

/// Time per decision with a hundred thousand entries beside that with ten, and the longest single calls.
pub fn time(rig: &mut Rig, report: &mut Report) {
    rig.empty();
    let mut shortest = [f64::INFINITY; 2];
    let mut denying = [f64::INFINITY; 2];
    let mut expiring = [f64::INFINITY; 2];
    let mut longest: f64 = 0.0;
    for round in 0..3 {
        for (index, entries) in [10, LARGE].into_iter().enumerate() {
            let key = format!("{entries}:{round}");
            let last = fill(rig, &key, entries);
            denying[index] = denying[index].min(each(rig, &key, entries, last));
            // Admissions while as much expires: the clock is set so that each call expires an entry.
            let from = START_US + HOUR;
            if entries == LARGE {
                shortest[1] = shortest[1].min(each(rig, &key, LARGE * 10, from));
                // Half of all expire at one call; then how the calls after it do.
                let half = from + entries / 2 * 1_000;
                longest = longest.max(once(rig, &key, 1, half));
                expiring[1] = expiring[1].min(each(rig, &key, LARGE * 10, half));
                // The clock steps back an hour; a denial far into the log; a reset is an UNLINK.
                longest = longest.max(once(rig, &key, LARGE * 10 - 10_000, half + 3_000_000));
                longest = longest.max(once(rig, &key, 1, half - HOUR / 2));
            } else {
                shortest[0] = shortest[0].min(each(rig, &key, LARGE * 10, last));
                let key = format!("expiring:{round}");
                let last = fill(rig, &key, entries);
                expiring[0] = expiring[0].min(each(rig, &key, LARGE * 10, last));
            }
        }
    }
    for (what, [small, large]) in [
        ("admitting", shortest),
        ("denying", denying),
        ("after 50,000 expire at once", expiring),
    ] {
        report.figure(&format!("{what}, 10 entries"), small, "us of Redis");
        report.figure(&format!("{what}, 100,000 entries"), large, "us of Redis");
        let name = format!("100,000 entries over 10, {what}");
        report.at_most(&name, large / small, 2.0);
    }
    let ms = longest / 1_000.0;
    report.figure("longest call, 100,000 entries", ms, "ms of Redis");
    report.at_most("longest call, ms", ms, 5.0);
}
