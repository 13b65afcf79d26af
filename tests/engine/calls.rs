//! A call as a whole: one that runs too late, keys that cannot be read, what is written and read, logs larger than any
//! history.

use super::expiry::{every_algorithm, take};
use super::lua::Lua;
use super::made::{SECOND, bucket, decision, one};
use super::settled::back;
use redis::Commands;
use sluicegate_engine::script::{BrokenState, Reply};
use sluicegate_engine::{Algorithm, Batch, Bucket, Done};

const NOW_US: u64 = 1_790_000_000_123_456;

/// One decision for each list of buckets, a unit from each of them.
fn batch(buckets: &[Bucket], decisions: &[&[usize]]) -> Batch {
    let decision = |buckets: &&[usize]| {
        let takes: Vec<_> = buckets.iter().map(|bucket| (*bucket, 1)).collect();
        decision(&takes, false)
    };
    Batch {
        buckets: buckets.to_vec(),
        decisions: decisions.iter().map(decision).collect(),
    }
}

fn keys(lua: &mut Lua) -> usize {
    let keys: Vec<String> = lua.connection.keys("*").expect("an answer");
    keys.len()
}

/// The reply of a call that ran too late, at this time.
fn late_at<T>(now_us: u64) -> Result<Reply<T>, String> {
    let each = None;
    Ok(Reply { now_us, each })
}

fn dump(lua: &mut Lua, key: &str) -> Vec<u8> {
    lua.ask(&["DUMP", key])
}

#[test]
fn a_call_that_runs_after_its_time_takes_nothing_and_says_when_it_ran() {
    let mut lua = Lua::start();
    let buckets = every_algorithm(60 * SECOND);
    let all = batch(&buckets, &[&[0, 1, 2, 3]]);
    let late = lua.reply(Some(NOW_US), Some(NOW_US - 1), &all);
    assert_eq!(late, late_at(NOW_US));
    assert_eq!(keys(&mut lua), 0, "nothing is written");
    let in_time = lua.reply(Some(NOW_US), Some(NOW_US), &all);
    let in_time = in_time.expect("a reply");
    assert_eq!(in_time.now_us, NOW_US);
    assert!(in_time.each.unwrap()[0].unwrap().admitted);
}

#[test]
fn a_give_back_that_runs_after_its_time_returns_nothing() {
    let mut lua = Lua::start();
    for bucket in every_algorithm(60 * SECOND) {
        let taken = take(&mut lua, Some(NOW_US), &bucket);
        let now_us = NOW_US + 1;
        let back = back(&bucket, 1, taken.at_us);
        let given = lua.try_settle(Some(now_us), Some(NOW_US), &back);
        assert_eq!(given, late_at(now_us));
        let returned = lua.settle(Some(NOW_US + 1), &back);
        assert_eq!(returned, Ok(vec![Done::Returned(1)]), "it was still there");
    }
}

/// By Redis's own clock, as in production: a call that waits in a stopped Redis takes nothing when Redis resumes.
#[test]
fn redis_judges_by_its_own_clock() {
    let mut lua = Lua::start();
    let bucket = every_algorithm(60 * SECOND).remove(0);
    let one = one(&bucket, 1, false);
    let now_us = lua.reply(None, None, &one).expect("a reply").now_us;
    let past = lua.reply(None, Some(now_us - 1), &one).expect("a reply");
    assert!(past.each.is_none() && past.now_us >= now_us);
    let ahead = lua.reply(None, Some(now_us + 3_600 * SECOND), &one);
    assert!(ahead.unwrap().each.is_some());
}

#[test]
fn a_key_that_cannot_be_read_leaves_only_its_own_decisions_unanswered() {
    let mut lua = Lua::start();
    let good = every_algorithm(60 * SECOND);
    for bad in every_algorithm(60 * SECOND) {
        for foreign in "a string,a short string,a list,a hash,a short hash".split(',') {
            let bad = Bucket {
                key: format!("sg:{{ends}}:bad:{}:{foreign}", bad.key),
                spec: bad.spec,
            };
            let key = bad.key.as_str();
            let () = match foreign {
                "a string" => lua.connection.set(key, "x".repeat(77)),
                "a short string" => lua.connection.set(key, "x"),
                "a list" => lua.connection.lpush(key, 1),
                "a hash" => lua.connection.hset(key, "h", "y".repeat(83)),
                _ => lua.connection.hset(key, "h", ""),
            }
            .expect("an answer");
            let kept = dump(&mut lua, key);
            let mut buckets = good.clone();
            buckets.push(bad.clone());
            let all = batch(&buckets, &[&[0, 1], &[1, 4], &[4], &[2, 3], &[0]]);
            let answers = lua.each(NOW_US, &all);
            let broken = Err(BrokenState);
            assert!(answers[0].is_ok() && answers[3].is_ok() && answers[4].is_ok());
            assert_eq!((answers[1], answers[2]), (broken, broken), "{key}");
            // The other decisions took their units; those over the broken key did not.
            let alone = lua.each(NOW_US, &batch(&good, &[&[0], &[1]]));
            let left = |index: usize| alone[index].expect("readable").remaining;
            assert_eq!((left(0), left(1)), (150 - 3, 150 - 2));
            assert!(lua.settle(Some(NOW_US), &back(&bad, 1, NOW_US)).is_err());
            assert_eq!(dump(&mut lua, key), kept, "it is not ours to change");
            for bucket in &good {
                lua.reset(&bucket.key);
            }
        }
    }
}

fn log(quota: u64) -> Bucket {
    bucket("sg:{far}:log", Algorithm::SlidingLog, quota, 60 * SECOND)
}

#[test]
fn a_log_that_has_lost_a_block_leaves_only_its_own_decisions_unanswered() {
    let mut lua = Lua::start();
    let bucket = log(100);
    let times: Vec<u64> = (0..100).map(|n| NOW_US + n).collect();
    lua.decide_all(&times, &one(&bucket, 1, false));
    let _: u64 = lua.ask(&["HDEL", &bucket.key, "1", "2"]);
    let batch = Batch {
        buckets: vec![bucket],
        decisions: [1, 30].map(|cost| decision(&[(0, cost)], false)).to_vec(),
    };
    let answers = lua.each(NOW_US + 100, &batch);
    // The wait for one unit follows from the oldest entry, which is intact; the wait for thirty cannot be computed.
    assert!(answers[0].is_ok_and(|outcome| !outcome.admitted));
    assert_eq!(answers[1], Err(BrokenState));
}

/// A number of a section of Redis's INFO.
fn info(lua: &mut Lua, section: &str, name: &str) -> u64 {
    let text: String = lua.ask(&["INFO", section]);
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let digits = line.and_then(|rest| rest.split([',', '\r']).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Commands that read or write one field of a hash, those of scripts included.
fn fields_touched(lua: &mut Lua) -> u64 {
    let names = ["cmdstat_hget:calls=", "cmdstat_hset:calls="];
    names
        .map(|name| info(lua, "commandstats", name))
        .iter()
        .sum()
}

#[test]
fn a_denial_and_a_peek_write_nothing() {
    let mut lua = Lua::start();
    for bucket in every_algorithm(60 * SECOND) {
        let ask = |lua: &mut Lua, cost, peek| {
            lua.decide(Some(NOW_US), &one(&bucket, cost, peek))[0].admitted
        };
        let writes = |lua: &mut Lua| info(lua, "persistence", "rdb_changes_since_last_save:");
        let empty = writes(&mut lua);
        assert!(ask(&mut lua, 149, false));
        let before = writes(&mut lua);
        assert!(before > empty, "an admission is written");
        for _ in 0..50 {
            assert!(!ask(&mut lua, 2, false), "{}", bucket.key);
            assert!(!ask(&mut lua, 2, true) && ask(&mut lua, 1, true));
        }
        assert_eq!(writes(&mut lua) - before, 0, "{}", bucket.key);
    }
}

/// A give-back rewrites every block between its record and the newest one.
#[test]
fn a_give_back_far_back_in_a_log_touches_few_blocks_and_returns_nothing() {
    // Of lua/algorithms/log.lua.
    const REACH: u64 = 1_024;
    const RECORDS: u64 = 2;
    let mut lua = Lua::start();
    // Small blocks: the reach is counted in blocks.
    lua.use_blocks_of(RECORDS as usize);
    let bucket = log(1_000_000);
    let one = one(&bucket, 1, false);
    let count = 2 * REACH * RECORDS;
    let times: Vec<u64> = (0..count).map(|n| NOW_US + n).collect();
    lua.decide_all(&times, &one);
    let now_us = NOW_US + count;
    let mut settle = |ago: u64| {
        let before = fields_touched(&mut lua);
        let returned = lua.settle(Some(now_us), &back(&bucket, 1, now_us - ago));
        let touched = fields_touched(&mut lua) - before;
        (returned.expect("an answer")[0], touched)
    };
    // A search takes two steps for each bit of the number of records at most.
    let search = 2 * u64::from(count.ilog2()) + 4;
    for (ago, expected, most) in [
        (count, 0, search),
        ((REACH + 2) * RECORDS, 0, search),
        ((REACH - 1) * RECORDS, 1, 2 * REACH + search),
    ] {
        let (returned, touched) = settle(ago);
        assert!(
            returned == Done::Returned(expected) && touched <= most,
            "{returned:?}, {touched}"
        );
    }
}

/// Three bytes for the number of blocks were enough for 302 million entries only. The state is synthetic: a log filled to
/// this size would need 4 GB in Redis.
#[test]
fn a_log_may_exceed_302_million_entries() {
    let mut lua = Lua::start();
    let bucket = log(2_000_000_000);
    let blocks = (1_u64 << 24) - 1;
    let entries = blocks * 18;
    let record = |total: u64| {
        let stamp = &NOW_US.to_be_bytes()[2..];
        [stamp, &total.to_be_bytes()[4..]].concat()
    };
    // The oldest record, and a full open block.
    let records = (entries + 1..=entries + 18).flat_map(record);
    let records: Vec<u8> = record(1).into_iter().chain(records).collect();
    let head = |number: u64, bytes: usize| number.to_be_bytes()[8 - bytes..].to_vec();
    let expires_us = NOW_US + 200 * SECOND;
    let fields = [
        (0, 6),
        (0, 4),
        (blocks, 4),
        (0, 4),
        (NOW_US, 7),
        (expires_us, 7),
        (0, 1),
    ];
    let fields = fields.map(|(number, bytes)| head(number, bytes));
    let first = (1..=18).flat_map(record);
    let first: Vec<u8> = [0; 4].into_iter().chain(first).collect();
    let state = [fields.concat(), records].concat();
    let all = [("h", state), ("0", first)];
    let set = lua.connection.hset_multiple(&bucket.key, &all);
    let () = set.expect("an answer");
    let ask = |lua: &mut Lua, at_us, cost| {
        lua.each(at_us, &one(&bucket, cost, false))[0].expect("readable")
    };
    let before = entries + 18;
    for n in 1..=40 {
        let outcome = ask(&mut lua, NOW_US + n, 1);
        assert!(outcome.admitted);
        assert_eq!(outcome.remaining, bucket.spec.quota - before - n);
    }
    // Blocks are still found by their numbers: all earlier entries expire together.
    let left = bucket.spec.quota - before - 40;
    for more in [2, 16] {
        let denied = ask(&mut lua, NOW_US + 40, left + more);
        assert_eq!(denied.retry_after_us, 60 * SECOND - 40);
    }
}
