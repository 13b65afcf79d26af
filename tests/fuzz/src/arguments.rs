//! The script's arguments, without the codec that always writes them right: requests of arbitrary bytes, and of arbitrary
//! decisions, over keys in any state. Redis answers at once and lives on, only the keys that were named change, all of them
//! end, and a request of decisions that is refused has written nothing.

use std::time::{Duration, Instant};

use redis::{Connection, RedisResult};
use sluicegate_engine::script::{self, Operation};
use sluicegate_engine::{Algorithm, Bucket, BucketSpec};

use crate::input::Input;
use crate::lua::Lua;
use crate::{batch, with_script};

const NOW_US: u64 = 1_790_000_000_123_456;
const SECOND: u64 = 1_000_000;
/// A request of so few bytes takes milliseconds; the rest is for machines that stall.
const AT_ONCE: Duration = Duration::from_secs(30);
/// A key that no request names.
const OTHER: &str = "sg:{fuzz}:other";

pub fn run(data: &[u8]) {
    with_script(|lua| one(lua, &mut Input::new(data)));
}

fn one(lua: &mut Lua, input: &mut Input<'_>) {
    lua.forget_everything();
    let kind = input.byte();
    let buckets = 0..1 + input.below(4);
    let buckets: Vec<_> = buckets.map(|index| bucket(index, input)).collect();
    for _ in 0..input.below(4) {
        let at_us = NOW_US - input.microseconds();
        let cost = 1 + u64::from(input.byte() % 8);
        let cost = |spec: &BucketSpec| cost.min(spec.most_at_once());
        lua.decide(Some(at_us), &batch(buckets.clone(), cost, 1));
    }
    let () = lua.ask(&["SET", OTHER, "kept"]);
    if kind & 1 == 1 {
        broken(lua, &buckets[0].key, input);
    }
    let before = dump(lua, &buckets);
    // Arbitrary bytes hardly ever come to a decision, so that most requests begin as they should.
    let valid = kind % 8 >= 2;
    let request = if valid {
        let empty = batch(buckets.clone(), |_| 0, 0);
        let head = empty.request(Some(NOW_US + SECOND));
        [head, decisions(input)].concat()
    } else {
        let never = [255; 7];
        [&never, input.take(usize::MAX)].concat()
    };
    let started = Instant::now();
    let reply = call(&mut lua.connection, &buckets, &request);
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
    match reply {
        Ok(reply) => {
            let length = reply.len();
            assert!(length == 7 || length.is_multiple_of(30), "{length}");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!error.is_io_error(), "{text}");
            // Not so for arbitrary bytes: a write-back stores full blocks before the script sees that what follows it is cut
            // short, and Redis may refuse numbers that no policy has when one of several keys is written already.
            if valid {
                assert_eq!(dump(lua, &buckets), before, "{text}");
            }
        }
    }
    assert_eq!(lua.ask::<String>(&["GET", OTHER]), "kept");
    let keys: Vec<String> = lua.ask(&["KEYS", "*"]);
    for key in keys.iter().filter(|key| *key != OTHER) {
        assert!(buckets.iter().any(|bucket| bucket.key == *key), "{key}");
        // What was broken has no end of ours, and lengths that no policy has may have none.
        if valid && kind & 1 == 0 {
            assert!(lua.ttl_ms(key) > 0, "{key} would stay for ever");
        }
    }
}

/// Takes and peeks, well-formed or nearly so.
fn decisions(input: &mut Input<'_>) -> Vec<u8> {
    let mut request = Vec::new();
    while !input.is_empty() && request.len() < 2_000 {
        let what = input.byte();
        if what == 255 {
            request.extend_from_slice(input.bytes(20));
            continue;
        }
        let takes = 1 + input.below(3) as u16;
        request.push(what & 1);
        request.extend(takes.to_be_bytes());
        for _ in 0..takes {
            let bucket = match input.byte() {
                // Most are there.
                far @ 250.. => u32::from(far),
                near => 1 + u32::from(near % 4),
            };
            let cost = u32::try_from(input.up_to(u64::from(u32::MAX))).unwrap_or(u32::MAX);
            request.extend(bucket.to_be_bytes());
            request.extend(cost.to_be_bytes());
        }
    }
    request
}

fn call(connection: &mut Connection, buckets: &[Bucket], request: &[u8]) -> RedisResult<Vec<u8>> {
    let keys: Vec<_> = buckets.iter().map(|bucket| bucket.key.as_str()).collect();
    let mut call = redis::cmd("EVAL");
    call.arg(script::DECIDE).arg(keys.len()).arg(keys);
    call.arg(request).arg(NOW_US).query(connection)
}

fn dump(lua: &mut Lua, buckets: &[Bucket]) -> Vec<Option<Vec<u8>>> {
    let dump = |bucket: &Bucket| lua.ask(&["DUMP", &bucket.key]);
    buckets.iter().map(dump).collect()
}

/// Something that the script did not write.
fn broken(lua: &mut Lua, key: &str, input: &mut Input<'_>) {
    lua.reset(key);
    let bytes = input.bytes(120);
    let (command, field) = match input.byte() % 4 {
        0 => ("SET", None),
        1 => ("RPUSH", None),
        2 => ("HSET", Some("0")),
        _ => ("HSET", Some("h")),
    };
    let mut command = redis::cmd(command);
    let set = command.arg(key).arg(field).arg(bytes);
    set.exec(&mut lua.connection).expect("done");
}

fn bucket(index: usize, input: &mut Input<'_>) -> Bucket {
    let window_us = 20 * SECOND * (1 + input.below(100) as u64);
    let algorithm = match input.byte() % 5 {
        0 => Algorithm::SlidingLog,
        kind @ 1..=2 => Algorithm::SlidingWindow {
            precision_us: 1 + input.up_to(window_us - 1),
            leased: kind == 2,
        },
        3 => Algorithm::FixedWindow,
        _ => Algorithm::TokenBucket {
            burst: 1 + input.up_to(1_000),
        },
    };
    let spec = BucketSpec {
        algorithm,
        quota: 1 + input.up_to(1_000),
        window_us,
    };
    assert_eq!(spec.check(), Ok(()));
    Bucket {
        key: format!("sg:{{fuzz}}:{index}"),
        spec,
    }
}
