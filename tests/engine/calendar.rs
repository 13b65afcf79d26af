//! Calendar windows: what the generated histories of agreement.rs do not come to. Calls for which Redis's clock is in another
//! window than was expected, and states of a version with other rules for a zone. Edges at which clocks change are in
//! `sidecar/engine/src/calendar/tests.rs`.

use super::lua::Lua;
use super::made::{self, SECOND, decision, one};
use sluicegate_engine::script::{self, Operation, Reply};
use sluicegate_engine::{Algorithm, Bucket, Calendar, CalendarUnit};

const HOUR: u64 = 3_600 * SECOND;

fn at(text: &str) -> u64 {
    let time: jiff::Timestamp = text.parse().expect("a time");
    u64::try_from(time.as_microsecond()).expect("after 1970")
}

fn bucket(unit: CalendarUnit, zone: &str, quota: u64) -> Bucket {
    let calendar = Calendar::new(unit, zone).expect("a zone");
    let key = format!("sg:{{calendar}}:{}:{zone}", unit.name());
    let algorithm = Algorithm::CalendarWindow(calendar);
    made::bucket(&key, algorithm, quota, calendar.longest_us())
}

#[test]
fn a_call_that_is_decided_on_the_other_side_of_an_edge_counts_there() {
    let mut lua = Lua::start();
    let month = bucket(CalendarUnit::Month, "Europe/Berlin", 2);
    let edge = at("2026-03-31T22:00:00Z");
    let batch = one(&month, 2, false);
    let mut ask = |now, not_after| match lua.reply(Some(now), Some(not_after), &batch) {
        Ok(Reply {
            each: Some(each), ..
        }) => each[0].expect("a state"),
        other => panic!("{other:?}"),
    };
    // One sidecar still expects March and another April; Redis's clock decides.
    let admitted = ask(edge - 1, edge + SECOND);
    assert!(admitted.admitted && admitted.reset_us == 1, "{admitted:?}");
    assert!(!ask(edge - 1, edge - 1).admitted);
    assert!(ask(edge, edge).admitted);
    assert!(!ask(edge, edge + 20 * SECOND).admitted);
}

#[test]
fn a_call_without_the_window_of_redis_is_answered_by_the_time_and_writes_nothing() {
    let mut lua = Lua::start();
    let day = bucket(CalendarUnit::Day, "Europe/Berlin", 2);
    let batch = one(&day, 1, false);
    let now = at("2026-11-22T12:00:00Z");
    // Redis's clock was set back by two days, or is not known at all.
    let late = Ok(Reply {
        now_us: now,
        each: None,
    });
    assert_eq!(lua.reply(Some(now), Some(now + 48 * HOUR), &batch), late);
    let unknown = batch.request(None);
    let mut call = redis::cmd("EVAL");
    call.arg(script::DECIDE).arg(1).arg(&day.key).arg(unknown);
    call.arg(script::clock(now));
    let reply: Vec<u8> = call.query(&mut lua.connection).expect("a reply");
    assert_eq!(batch.read(&reply).map_err(|why| why.to_string()), late);
    assert_eq!(lua.ttl_ms(&day.key), -2);
    assert!(lua.decide(Some(now), &batch)[0].admitted);
}

#[test]
fn where_a_log_is_mended_in_the_same_call_only_the_calendar_window_goes_unanswered() {
    let mut lua = Lua::start();
    let log = Algorithm::SlidingLog;
    let log = made::bucket("sg:{calendar}:log", log, 60, 60 * SECOND);
    let day = bucket(CalendarUnit::Day, "UTC", 5);
    let now = at("2026-11-22T12:00:00Z");
    for entry in 0..50 {
        lua.decide(Some(now + entry * 10_000), &one(&log, 1, false));
    }
    assert!(lua.decide(Some(now), &one(&day, 1, false))[0].admitted);
    // Back by two days, which the caller does not know of.
    let back = now - 48 * HOUR;
    let mut batch = made::batch(&[log.clone(), day.clone()], 1, false);
    batch.decisions.push(decision(&[(0, 1)], false));
    let Ok(Reply {
        each: Some(each), ..
    }) = lua.reply(Some(back), Some(now), &batch)
    else {
        panic!("no answer");
    };
    assert!(each[0].is_err(), "{each:?}");
    assert!(each[1].is_ok_and(|outcome| outcome.admitted && outcome.remaining == 9));
    // What the log holds is sound, and the day is as it was.
    assert_eq!(lua.decide(Some(back), &one(&log, 1, false))[0].remaining, 8);
    assert_eq!(lua.decide(Some(now), &one(&day, 1, false))[0].remaining, 3);
}

#[test]
fn a_count_of_a_version_with_other_rules_for_the_zone_stays() {
    let mut lua = Lua::start();
    let day = bucket(CalendarUnit::Day, "Europe/Berlin", 5);
    let batch = one(&day, 1, false);
    // By that version the day began an hour later, at 0:00 UTC: four units since.
    let start = at("2026-11-22T00:00:00Z");
    let stamp = &start.to_be_bytes()[1..];
    let state = [stamp, &4_u32.to_be_bytes(), stamp].concat();
    let mut set = redis::cmd("SET");
    set.arg(&day.key).arg(state).arg("PX").arg(3_600_000);
    set.exec(&mut lua.connection).expect("an answer");
    let now = start + HOUR;
    assert_eq!(lua.decide(Some(now), &batch)[0].remaining, 0);
    let denied = lua.decide(Some(now), &batch)[0];
    // To the end of the day by its own rules.
    assert_eq!((denied.admitted, denied.retry_after_us), (false, 22 * HOUR));
    // The other version still finds the window that it began.
    let kept: Vec<u8> = lua.ask(&["GET", &day.key]);
    assert_eq!(kept[..11], [stamp, &5_u32.to_be_bytes()].concat());
}

#[test]
fn a_key_ends_with_its_window() {
    let mut lua = Lua::start();
    let month = bucket(CalendarUnit::Month, "UTC", 5);
    let now = at("2026-11-22T12:00:00Z");
    lua.decide(Some(now), &one(&month, 1, false));
    let left_ms = i64::try_from((at("2026-12-01T00:00:00Z") - now) / 1_000).expect("fits");
    let ttl_ms = lua.ttl_ms(&month.key);
    let range = left_ms - 60_000..=left_ms + 1_000;
    assert!(range.contains(&ttl_ms), "{ttl_ms} {range:?}");
}
