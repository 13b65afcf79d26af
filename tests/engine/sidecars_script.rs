//! `lua/sidecars.lua` by itself: who counts as alive when Redis's clock steps back, and since when it has its list.

use super::lua::Lua;
use redis::Connection;
use sluicegate_tests::redis::from_words;
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("../../lua/sidecars.lua");
const NAMES: &str = "sg:{sidecars}:names";
const ENDS: &str = "sg:{sidecars}:ends";
/// How long a sidecar stays registered.
const STAYS_MS: u64 = 300;

/// What the script answers: rank, number of sidecars, age of the list, head of the overrides.
type Listed = (u64, u64, u64, Option<Vec<u8>>);

fn call(connection: &mut Connection, keys: &[&str], name: &str, stays_ms: u64) -> Listed {
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(keys.len()).arg(keys);
    eval.arg(name).arg(stays_ms).arg("");
    eval.query(connection).expect("an answer")
}

/// Registers a sidecar; how many there are.
fn register(connection: &mut Connection, name: &str) -> u64 {
    call(connection, &[NAMES, ENDS], name, STAYS_MS).1
}

/// R4: one that Redis has evicted, in part or as a whole, is a new list, of which nobody may conclude that others are gone.
#[test]
fn a_list_that_lost_an_entry_begins_anew() {
    let mut lua = Lua::start();
    let connection = &mut lua.connection;
    let listed =
        |connection: &mut Connection, name| call(connection, &[NAMES, ENDS], name, 600_000);
    for lost in [NAMES, ENDS] {
        listed(connection, "a");
        std::thread::sleep(Duration::from_millis(30));
        let (rank, count, age_ms, _) = listed(connection, "b");
        assert_eq!((rank, count), (1, 2));
        assert!(age_ms >= 30, "{age_ms}");
        let old_ms = age_ms;
        redis::cmd("UNLINK")
            .arg(lost)
            .exec(connection)
            .expect("an answer");
        let (rank, count, age_ms, _) = listed(connection, "b");
        assert_eq!((rank, count), (0, 1), "without {lost}");
        assert!(age_ms < old_ms, "without {lost}: {age_ms}");
        assert_eq!(listed(connection, "a").1, 2);
    }
}

/// R11: an ACL may forbid what sets the end of what was just written.
#[test]
fn lists_that_could_not_end_are_not_left() {
    let mut lua = Lua::start();
    let connection = &mut lua.connection;
    let run = |connection: &mut Connection, words: &str| -> redis::Value {
        from_words(words).query(connection).expect(words)
    };
    run(connection, "ACL SETUSER default -pexpire");
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(2).arg(&[NAMES, ENDS]);
    let refused = eval.arg("a").arg(STAYS_MS).arg("").exec(connection);
    assert!(refused.is_err());
    let none = redis::Value::Array(Vec::new());
    assert_eq!(run(connection, "KEYS *"), none);
}

#[test]
fn the_answer_has_the_head_of_the_overrides_if_there_are_any() {
    let mut lua = Lua::start();
    let connection = &mut lua.connection;
    let keys = [NAMES, ENDS, "sg:{overrides}"];
    assert_eq!(call(connection, &keys, "a", STAYS_MS).3, None);
    let mut set = redis::cmd("HSET");
    set.arg(keys[2]).arg(":").arg(b"\x00\xff");
    set.exec(connection).expect("an answer");
    assert_eq!(
        call(connection, &keys, "a", STAYS_MS).3,
        Some(b"\x00\xff".to_vec())
    );
}

/// After a failover to a Redis whose clock is a day behind: what two sidecars registered by the old clock.
#[test]
fn a_sidecar_that_died_before_the_clock_stepped_back_is_soon_forgotten() {
    let mut lua = Lua::start();
    let connection = &mut lua.connection;
    for name in ["alive", "dead"] {
        register(connection, name);
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query(connection).expect("a time");
        let mut add = redis::cmd("ZADD");
        add.arg(ENDS).arg((seconds + 86_400) * 1_000).arg(name);
        add.exec(connection).expect("an answer");
    }
    // Both may still be alive, so none is forgotten at once.
    assert_eq!(register(connection, "alive"), 2);
    let deadline = Instant::now() + Duration::from_secs(20);
    while register(connection, "alive") != 1 {
        assert!(Instant::now() < deadline, "the dead one is still counted");
        std::thread::sleep(Duration::from_millis(20));
    }
}
