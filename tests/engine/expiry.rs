//! Every key expires after its last unit, and not long after; then Redis is empty.

use crate::lua::Lua;
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
    let takes = vec![Take { bucket: 0, cost: 1 }];
    let batch = Batch {
        buckets: vec![bucket.clone()],
        decisions: vec![Decision {
            takes,
            peek: false,
            receipts: Vec::new(),
        }],
    };
    lua.decide(now_us, &batch)[0]
}

/// Takes units now and then, and compares the key's time to live with the time for which its units are held. The clock
/// that is passed in runs ahead of Redis's own, so only a time to live that was just set is checked.
pub fn keys_outlive_their_units(lua: &mut Lua) -> Result<(), String> {
    for bucket in every_algorithm(60 * SECOND) {
        let mut real_expiry_us = 0;
        for step in 0..100 {
            let now = START_US + step * 1_700_000;
            let outcome = take(lua, Some(now), &bucket);
            let ttl = u64::try_from(lua.ttl_ms(&bucket.key));
            let ttl = ttl.map_err(|_| format!("{} has no end", bucket.key))? * 1_000;
            // Only if it was set at this step.
            if real_expiry_us < now + outcome.reset_us {
                real_expiry_us = now + ttl;
            }
            let stays = now + outcome.reset_us;
            if real_expiry_us < stays {
                return Err(format!("{} ends before its last unit", bucket.key));
            }
            // The longest excess: the same time again for a token bucket, a quarter for a log; and a second.
            if real_expiry_us > stays + outcome.reset_us + 62 * SECOND {
                return Err(format!("{} stays too long", bucket.key));
            }
        }
        lua.reset(&bucket.key);
    }
    Ok(())
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
