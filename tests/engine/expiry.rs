//! Every key expires after its last unit, and not long after; then Redis is empty.

use super::lua::Lua;
use super::made::{SECOND, START_US, bucket, one, sliding};
use sluicegate_engine::{Algorithm, Bucket, Outcome};
use std::time::{Duration, Instant};

pub fn every_algorithm(window_us: u64) -> Vec<Bucket> {
    let algorithms = [
        Algorithm::SlidingLog,
        sliding(window_us / 4, false),
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 150 },
    ];
    let key = |algorithm| format!("sg:{{ends}}:{algorithm:?}");
    algorithms
        .map(|one| bucket(&key(one), one, 150, window_us))
        .to_vec()
}

pub fn take(lua: &mut Lua, now_us: Option<u64>, bucket: &Bucket) -> Outcome {
    ask(lua, now_us, bucket, 1, false)
}

fn ask(lua: &mut Lua, now_us: Option<u64>, bucket: &Bucket, cost: u64, peek: bool) -> Outcome {
    lua.decide(now_us, &one(bucket, cost, peek))[0]
}

/// An end that no script sets, in milliseconds since 1970: a key that has it was not given one since.
const MARK_MS: u64 = 4_000_000_000_000;

/// Takes units now and then, and compares when the key ends with the time for which its units are held. The clock that is
/// passed in runs ahead of Redis's own, so an end counts from the step at which it was set.
pub fn keys_outlive_their_units(lua: &mut Lua) -> Result<(), String> {
    for bucket in every_algorithm(60 * SECOND) {
        let mut ends_us = 0;
        for step in 0..100 {
            let now = START_US + step * 1_700_000;
            // Of before, so that a machine that stalls lengthens what is measured.
            let before_ms = lua.clock_ms();
            let outcome = take(lua, Some(now), &bucket);
            let end_ms = lua.end_ms(&bucket.key);
            let end_ms = end_ms.ok_or_else(|| format!("{} has no end", bucket.key))?;
            if end_ms != MARK_MS {
                ends_us = now + (end_ms - before_ms) * 1_000;
            }
            let () = lua.ask(&["PEXPIREAT", &bucket.key, &MARK_MS.to_string()]);
            let stays = now + outcome.reset_us;
            if ends_us < stays {
                return Err(format!("{} ends before its last unit", bucket.key));
            }
            // The longest excess: the same time again for a token bucket, a quarter for a log; and a second.
            if ends_us > stays + outcome.reset_us + 62 * SECOND {
                return Err(format!("{} stays too long", bucket.key));
            }
        }
        lua.reset(&bucket.key);
    }
    Ok(())
}

/// A bucket that was filled by a fast rate is held for longer by a slow one. A look by that rate extends its key, once.
pub fn a_slower_rate_extends_a_key(lua: &mut Lua) -> Result<(), String> {
    let token = Algorithm::TokenBucket { burst: 100 };
    let [fast, slow] = [100, 1].map(|quota| bucket("sg:{ends}:slower", token, quota, SECOND));
    lua.reset(&fast.key);
    let filled = ask(lua, Some(START_US), &fast, 100, false);
    let held = |held: bool, what: &str| held.then_some(()).ok_or(what.to_owned());
    held(filled.admitted, "not admitted")?;
    let before_ms = lua.clock_ms();
    for cost in [0, 100] {
        let look = ask(lua, Some(START_US), &slow, cost, false);
        held(look.reset_us == 100 * SECOND, "the slow rate's reset")?;
        let end_ms = lua.end_ms(&slow.key);
        let outlives = end_ms >= Some(before_ms + 100_000);
        held(outlives, "the key ends before its last unit")?;
    }
    // The state itself is as the fast rate left it, and is extended no further.
    let state = |lua: &mut Lua| lua.ask::<Vec<u8>>(&["GET", &slow.key]);
    let before = state(lua);
    ask(lua, Some(START_US + SECOND / 2), &slow, 100, false);
    held(before == state(lua), "a second look has written")?;
    let half = ask(lua, Some(START_US + SECOND / 2), &fast, 0, true);
    held(half.remaining == 50, "the fast rate's count has changed")?;
    lua.reset(&fast.key);
    Ok(())
}

#[test]
fn a_look_by_a_slower_rate_extends_a_token_buckets_key() {
    a_slower_rate_extends_a_key(&mut Lua::start()).expect("a key that ends in time");
}

#[test]
fn keys_end_after_their_last_unit_and_not_long_after() {
    keys_outlive_their_units(&mut Lua::start()).expect("keys that end in time");
}

#[test]
fn no_key_is_left_behind() {
    let mut lua = Lua::start();
    for _ in 0..20 {
        for bucket in &every_algorithm(50_000) {
            take(&mut lua, None, bucket);
            // It may have ended by now, but has an end.
            assert_ne!(lua.ttl_ms(&bucket.key), -1, "{}", bucket.key);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while lua.ask::<u64>(&["DBSIZE"]) > 0 {
        assert!(Instant::now() < deadline, "keys are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}
