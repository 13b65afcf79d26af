//! `lua/sidecars.lua` by itself: who counts as alive when Redis's clock steps back.

use super::lua::Lua;
use redis::Connection;
use std::time::{Duration, Instant};

const SCRIPT: &str = include_str!("../../lua/sidecars.lua");
const NAMES: &str = "sg:{sidecars}:names";
const ENDS: &str = "sg:{sidecars}:ends";
/// How long a sidecar stays registered.
const STAYS_MS: u64 = 300;

/// Registers a sidecar; how many there are.
fn register(connection: &mut Connection, name: &str) -> u64 {
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(2).arg(NAMES).arg(ENDS);
    eval.arg(name).arg(STAYS_MS).arg("");
    let (_, count): (u64, u64) = eval.query(connection).expect("a rank and a number");
    count
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
