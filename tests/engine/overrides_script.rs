//! `lua/overrides.lua` by itself: what was read, expiry, versions.

use redis::Connection;

use super::lua::Lua;

const SCRIPT: &str = include_str!("../../lua/overrides.lua");
const HASH: &str = "sg:{overrides}";
const HEAD: &str = ":";
/// Milliseconds since 1970, far in the past and far in the future.
const PAST: u64 = 1;
const FUTURE: u64 = 4_000_000_000_000;
const DAY_MS: i64 = 86_400_000;

/// Entries by field, with their end (0: none).
type Entries<'a> = [(&'a str, u64)];

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

    /// Becomes `next`, if the version is the one that was `read`; `dropped` are left out.
    fn change(&mut self, read: u64, after: u64, next: &Entries, dropped: &Entries) -> bool {
        let mut command = redis::cmd("EVAL");
        let latest = |entries: &Entries| entries.iter().map(|(_, end)| *end).max().unwrap_or(0);
        let endless = next.iter().filter(|(_, end)| *end == 0).count();
        command.arg(SCRIPT).arg(1).arg(HASH);
        command.arg(read).arg(after).arg(latest(dropped));
        command.arg(next.len()).arg(7).arg(endless);
        command.arg(latest(next)).arg(u8::from(dropped.is_empty()));
        for (field, _) in next {
            command.arg(field).arg(0).arg("{}");
        }
        for (field, _) in dropped {
            command.arg(field).arg(0).arg("");
        }
        command.query(&mut self.connection).expect("an answer")
    }

    fn ask<T: redis::FromRedisValue>(&mut self, command: &str, more: &[&str]) -> T {
        let mut command = redis::cmd(command);
        command.arg(HASH).arg(more);
        command.query(&mut self.connection).expect("an answer")
    }

    /// The version, and that of the last change that dropped entries.
    fn head(&mut self) -> (u64, u64) {
        let head: Option<Vec<u8>> = self.ask("HGET", &[HEAD]);
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        head.map_or((0, 0), |head| (number(&head[..7]), number(&head[26..])))
    }

    fn fields(&mut self) -> Vec<String> {
        let mut fields: Vec<String> = self.ask("HKEYS", &[]);
        fields.sort();
        fields
    }
}

#[test]
fn of_changes_that_have_read_the_same_the_first_is_made() {
    let mut overrides = Overrides::new();
    let made: Vec<_> = (0..20)
        .filter(|n| overrides.change(0, 0, &[(&format!("l:{n}"), 0)], &[]))
        .collect();
    assert_eq!(made, [0]);
    assert_eq!(overrides.fields(), [HEAD, "l:0"]);
    let (version, _) = overrides.head();
    assert!(!overrides.change(version - 1, 0, &[("l:b", 0)], &[]));
    assert!(overrides.change(version, 0, &[("l:b", 0)], &[]));
}

#[test]
fn the_hash_expires_only_when_all_overrides_end() {
    let mut overrides = Overrides::new();
    let ttl = |overrides: &mut Overrides| overrides.ask::<i64>("PTTL", &[]);
    let version = |overrides: &mut Overrides| overrides.head().0;
    overrides.change(0, 0, &[("l:a", FUTURE)], &[]);
    assert!(ttl(&mut overrides) > 2 * DAY_MS);
    let read = version(&mut overrides);
    overrides.change(read, 0, &[("l:b", 0)], &[]);
    assert_eq!(ttl(&mut overrides), -1, "one has no end");
    let read = version(&mut overrides);
    overrides.change(read, 0, &[("l:a", PAST)], &[("l:b", PAST)]);
    let left = ttl(&mut overrides);
    assert!(
        (DAY_MS..2 * DAY_MS).contains(&left),
        "removals are remembered: {left}"
    );
    let read = version(&mut overrides);
    assert!(overrides.change(read, 0, &[], &[("l:a", PAST)]));
    assert_eq!(overrides.ask::<u64>("EXISTS", &[]), 0);
}

#[test]
fn an_override_is_dropped_after_its_end_by_the_clock_of_redis() {
    let mut overrides = Overrides::new();
    overrides.change(0, 0, &[("l:ended", PAST), ("l:future", FUTURE)], &[]);
    let before @ (read, dropped) = overrides.head();
    assert_eq!(dropped, 1, "as the caller says");
    assert!(!overrides.change(read, 0, &[("l:ended", PAST)], &[("l:future", FUTURE)]));
    assert_eq!(overrides.head(), before);
    assert!(overrides.change(read, 0, &[("l:future", FUTURE)], &[("l:ended", PAST)]));
    assert_eq!(overrides.fields(), [HEAD, "l:future"]);
    let (version, dropped) = overrides.head();
    assert_eq!(version, dropped);
}

#[test]
fn a_version_is_never_used_twice_and_exceeds_what_was_known() {
    let mut overrides = Overrides::new();
    let mut seen = Vec::new();
    for _ in 0..50 {
        overrides.change(0, 0, &[("l:a", 0)], &[]);
        let (version, _) = overrides.head();
        seen.push(version);
        // Deletes the hash, and the version with it.
        assert!(overrides.change(version, 0, &[], &[("l:a", PAST)]));
    }
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");
    // A Redis whose clock was ahead has given it.
    let known = 2 * seen[49];
    assert!(overrides.change(0, known, &[("l:a", 0)], &[]));
    assert_eq!(overrides.head().0, known + 1);
}
