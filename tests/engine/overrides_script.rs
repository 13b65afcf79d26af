//! `lua/overrides.lua` by itself: bounds, expiry, versions.

use redis::Connection;

use super::lua::Lua;

const SCRIPT: &str = include_str!("../../lua/overrides.lua");
const HASH: &str = "sg:{overrides}";
const HEAD: &str = ":";
/// Milliseconds since 1970, far in the past and far in the future.
const PAST: u64 = 1;
const FUTURE: u64 = 4_000_000_000_000;

struct Overrides {
    connection: Connection,
    _lua: Lua,
}

impl Overrides {
    fn new() -> Self {
        let lua = Lua::start();
        Self {
            connection: lua.another(),
            _lua: lua,
        }
    }

    fn eval(&mut self, arguments: &[String]) -> i64 {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(HASH).arg(arguments);
        command.query(&mut self.connection).expect("an answer")
    }

    /// Sets one; at most 3 overrides, and 100 bytes of fields and texts.
    fn set(&mut self, field: &str, end: u64, text: &str) -> i64 {
        self.eval(&["set", field, &end.to_string(), text, "3", "100"].map(str::to_owned))
    }

    fn remove(&mut self, field: &str) -> i64 {
        self.eval(&["remove", field].map(str::to_owned))
    }

    fn sweep(&mut self, fields: &[&str]) -> i64 {
        let names = ["sweep"].iter().chain(fields).map(|&name| name.to_owned());
        self.eval(&names.collect::<Vec<_>>())
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &str, more: &[&str]) -> T {
        let mut command = redis::cmd(command);
        command.arg(HASH).arg(more);
        command.query(&mut self.connection).expect("an answer")
    }

    fn version(&mut self) -> Vec<u8> {
        let head: Vec<u8> = self.ask("HGET", &[HEAD]);
        head[..7].to_vec()
    }
}

#[test]
fn a_full_store_refuses_a_new_override_and_still_replaces_and_removes() {
    let mut overrides = Overrides::new();
    for field in ["l:a", "l:b", "l:c"] {
        assert_eq!(overrides.set(field, 0, "x"), 0);
    }
    let before = overrides.version();
    assert_eq!(overrides.set("l:d", 0, "x"), -1, "three are the most");
    let set = |overrides: &mut Overrides, field, bytes| overrides.set(field, 0, &"x".repeat(bytes));
    assert_eq!(set(&mut overrides, "l:a", 90), -1, "too many bytes");
    assert_eq!(overrides.version(), before, "nothing was changed");
    assert_eq!(overrides.ask::<u64>("HLEN", &[]), 4);
    assert_eq!(set(&mut overrides, "l:a", 80), 1);
    assert_eq!(set(&mut overrides, "l:b", 20), -1, "the sum counts");
    assert_eq!(overrides.remove("l:a"), 1);
    assert_eq!(set(&mut overrides, "l:d", 80), 0, "its bytes are free");
}

#[test]
fn the_hash_expires_only_when_all_overrides_end() {
    let mut overrides = Overrides::new();
    overrides.set("l:a", FUTURE, "x");
    assert!(overrides.ask::<i64>("PTTL", &[]) > 0);
    overrides.set("l:b", 0, "x");
    assert_eq!(overrides.ask::<i64>("PTTL", &[]), -1, "one has no end");
    overrides.remove("l:b");
    assert!(overrides.ask::<i64>("PTTL", &[]) > 0);
    overrides.remove("l:a");
    assert_eq!(overrides.ask::<u64>("EXISTS", &[]), 0);
}

#[test]
fn a_sweep_removes_what_has_ended_and_nothing_else() {
    let mut overrides = Overrides::new();
    overrides.set("l:ended", PAST, "x");
    overrides.set("l:future", FUTURE, "x");
    overrides.set("l:endless", 0, "x");
    let fields = ["l:ended", "l:future", "l:endless", "l:unknown", HEAD];
    assert_eq!(overrides.sweep(&fields), 1);
    let left: std::collections::BTreeSet<String> = overrides.ask("HKEYS", &[]);
    assert!(left.iter().eq([HEAD, "l:endless", "l:future"]), "{left:?}");
    let version = overrides.version();
    assert_eq!(overrides.sweep(&fields), 0);
    assert_eq!(overrides.version(), version, "nothing has changed");
}

#[test]
fn a_version_is_never_used_twice() {
    let mut overrides = Overrides::new();
    let mut seen = Vec::new();
    for _ in 0..50 {
        overrides.set("l:a", 0, "x");
        seen.push(overrides.version());
        // Deletes the hash, and the version with it.
        assert_eq!(overrides.remove("l:a"), 1);
        assert_eq!(overrides.remove("l:a"), 0);
    }
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
}
