//! Write-backs put what was admitted elsewhere during an outage into the windows, and their work is bounded.

use super::expiry::every_algorithm;
use super::lua::Lua;
use super::made::{SECOND, START_US, bucket, one};
use super::settled::more;
use sluicegate_engine::{Algorithm, Bucket, Done, Guard, MAX_RECORDS, Memory, Outcome, Record};

fn ask(memory: &mut Memory, now_us: u64, bucket: &Bucket, cost: u64) -> Outcome {
    memory.decide(now_us, &one(bucket, cost, false))[0].expect("room")
}

#[test]
fn write_back_sends_at_most_64_records_and_none_earlier_than_it_was() {
    for bucket in every_algorithm(60 * SECOND) {
        let mut sidecar = Memory::default();
        for n in 0..150 {
            assert!(ask(&mut sidecar, START_US + n * 10_000, &bucket, 1).admitted);
        }
        let now_us = START_US + SECOND * 3 / 2;
        let records = sidecar.records(now_us, &bucket.key);
        assert!(records.len() <= MAX_RECORDS && records.is_sorted_by_key(|r| r.at_us));
        let mut other = Memory::default();
        other.settle(now_us, &more(&bucket, Guard::None, &records));
        for later in (0..70).map(|seconds| now_us + seconds * SECOND) {
            let peek = one(&bucket, 1, true);
            let left =
                |memory: &mut Memory| memory.decide(later, &peek)[0].expect("room").remaining;
            assert!(left(&mut other) <= left(&mut sidecar), "{bucket:?}");
        }
    }
}

/// A log of 10,000 entries, all of them later than what is written back.
#[test]
fn write_back_deep_into_a_log_is_bounded_and_held_longer_never_shorter() {
    let mut lua = Lua::start();
    let log = Algorithm::SlidingLog;
    let bucket = bucket("sg:{deep}:log", log, 1_000_000, 600 * SECOND);
    const ENTRIES: u64 = 10_000;
    let times: Vec<u64> = (0..ENTRIES).map(|n| START_US + SECOND + n).collect();
    for chunk in times.chunks(1_000) {
        lua.decide_all(chunk, &one(&bucket, 1, false));
    }
    let now_us = START_US + 2 * SECOND;
    let record = |n: u64| Record {
        at_us: START_US + n,
        units: 10,
    };
    let records: Vec<Record> = (0..MAX_RECORDS as u64).map(record).collect();
    let recorded = lua.settle(Some(now_us), &more(&bucket, Guard::None, &records));
    assert_eq!(recorded, Ok(vec![Done::Added(640)]));
    let left = |lua: &mut Lua, at_us| lua.decide(Some(at_us), &one(&bucket, 0, true))[0].remaining;
    let held = ENTRIES + 640;
    assert_eq!(left(&mut lua, now_us), 1_000_000 - held);
    // Nothing expires early, and everything expires with the log's last entry.
    let ends_us = START_US + 600 * SECOND;
    assert_eq!(left(&mut lua, ends_us + 64), 1_000_000 - held);
    let all_gone = ends_us + SECOND + ENTRIES;
    assert_eq!(left(&mut lua, all_gone), 1_000_000);
    let depth = 129 * 18;
    let before = left(&mut lua, all_gone - depth - 2);
    // 128 of 555 blocks are read: units beyond them are held until the deepest of those ends.
    assert_eq!(before, 1_000_000 - 640 - (depth + 1));
}

/// A call whose answer was lost is repeated, and must have an effect once.
#[test]
fn a_repeated_write_back_of_the_same_name_is_recorded_once() {
    let mut lua = Lua::start();
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 1_000 },
    ] {
        let key = format!("sg:{{k}}:{algorithm:?}");
        let target = bucket(&key, algorithm, 1_000, 600 * SECOND);
        let records = [Record {
            at_us: START_US,
            units: 7,
        }];
        let mut memory = Memory::default();
        // The clock steps back before the third.
        let (now, back) = (START_US + 1, START_US - SECOND);
        for (now, once, recorded) in [
            (now, "first", Done::Added(7)),
            (now, "first", Done::Nothing),
            (back, "first", Done::Nothing),
            (back, "second", Done::Added(7)),
        ] {
            let guard = Guard::Once {
                key: format!("{key}:{once}"),
                lasts_us: 600 * SECOND,
            };
            let more = more(&target, guard, &records);
            assert!(more.is_repeatable());
            assert_eq!(memory.settle(now, &more), [recorded], "{algorithm:?}");
            let written = lua.settle(Some(now), &more);
            assert_eq!(written, Ok(vec![recorded]), "{algorithm:?}");
        }
        let left = lua.decide(Some(back), &one(&target, 0, true))[0].remaining;
        assert_eq!(left, 1_000 - 14);
        assert!(lua.ttl_ms(&format!("{key}:first")) > 0);
    }
}
