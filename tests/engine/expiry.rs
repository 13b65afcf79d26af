//! Every key expires after its last unit, and not long after; then Redis is empty.

use super::lua::Lua;
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome, Take};
use std::time::{Duration, Instant};

const START_US: u64 = 1_790_000_000_000_000;
const SECOND: u64 = 1_000_000;

pub fn every_algorithm(window_us: u64) -> Vec<Bucket> {
    let precision_us = window_us / 4;
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow {
            precision_us,
            leased: false,
        },
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 150 },
    ];
    let bucket = |algorithm| Bucket {
        key: format!("sg:{{ends}}:{algorithm:?}"),
        spec: BucketSpec {
            algorithm,
            quota: 150,
            window_us,
        },
    };
    algorithms.map(bucket).to_vec()
}

pub fn take(lua: &mut Lua, now_us: Option<u64>, bucket: &Bucket) -> Outcome {
    ask(lua, now_us, bucket, 1, false)
}

fn ask(lua: &mut Lua, now_us: Option<u64>, bucket: &Bucket, cost: u64, peek: bool) -> Outcome {
    let batch = Batch {
        buckets: vec![bucket.clone()],
        decisions: vec![Decision {
            takes: vec![Take { bucket: 0, cost }],
            peek,
            receipts: Vec::new(),
        }],
    };
    lua.decide(now_us, &batch)[0]
}

/// An end that no script sets, in milliseconds since 1970: a key that has it was not given one since.
const MARK_MS: u64 = 4_000_000_000_000;
/// No script sets a time to live this long, and that of the mark is longer until 2065.
const LONG_MS: u64 = 1_000_000_000_000;

/// Takes units now and then, and compares when the key ends with the time for which its units are held. The clock that is
/// passed in runs ahead of Redis's own, so an end counts from the step at which it was set.
pub fn keys_outlive_their_units(lua: &mut Lua) -> Result<(), String> {
    for bucket in every_algorithm(60 * SECOND) {
        let mut ends_us = 0;
        for step in 0..100 {
            let now = START_US + step * 1_700_000;
            let outcome = take(lua, Some(now), &bucket);
            let ttl_ms = u64::try_from(lua.ttl_ms(&bucket.key));
            let ttl_ms = ttl_ms.map_err(|_| format!("{} has no end", bucket.key))?;
            if ttl_ms < LONG_MS {
                ends_us = now + ttl_ms * 1_000;
            }
            redis::cmd("PEXPIREAT")
                .arg(&bucket.key)
                .arg(MARK_MS)
                .exec(&mut lua.connection)
                .expect("an answer");
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
    let [fast, slow] = [100, 1].map(|quota| Bucket {
        key: "sg:{ends}:slower".to_owned(),
        spec: BucketSpec {
            algorithm: Algorithm::TokenBucket { burst: 100 },
            quota,
            window_us: SECOND,
        },
    });
    lua.reset(&fast.key);
    let filled = ask(lua, Some(START_US), &fast, 100, false);
    let held = |held: bool, what: &str| held.then_some(()).ok_or(what.to_owned());
    held(filled.admitted, "not admitted")?;
    let ttl_ms = |lua: &mut Lua| lua.ttl_ms(&slow.key);
    for cost in [0, 100] {
        let look = ask(lua, Some(START_US), &slow, cost, false);
        held(look.reset_us == 100 * SECOND, "the slow rate's reset")?;
        let held_ms = 100_000;
        held(ttl_ms(lua) >= held_ms, "the key ends before its last unit")?;
    }
    // The state itself is as the fast rate left it, and is extended no further.
    let state: Vec<u8> = redis::cmd("GET")
        .arg(&slow.key)
        .query(&mut lua.connection)
        .expect("an answer");
    ask(lua, Some(START_US + SECOND / 2), &slow, 100, false);
    let again: Vec<u8> = redis::cmd("GET")
        .arg(&slow.key)
        .query(&mut lua.connection)
        .expect("an answer");
    held(state == again, "a second look has written")?;
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
    let started = Instant::now();
    let buckets = every_algorithm(50_000);
    while started.elapsed() < Duration::from_millis(300) {
        for bucket in &buckets {
            take(&mut lua, None, bucket);
            assert!(lua.ttl_ms(&bucket.key) > 0, "{} has no end", bucket.key);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let size: u64 = redis::cmd("DBSIZE")
            .query(&mut lua.connection)
            .expect("an answer");
        if size == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{size} keys are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}
