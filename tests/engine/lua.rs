//! The script on a real Redis, asked synchronously and one call at a time.

use redis::{Connection, FromRedisValue, RedisResult};
use sluicegate_engine::script::{self, BrokenState, Operation, Reply, Settled};
use sluicegate_engine::{Batch, Done, Outcome, Settlements};
use std::any::Any;
use std::collections::HashMap;

/// A connection to a Redis, and the script that it has loaded.
pub struct Lua {
    /// Ends with this: a Redis that somebody started for it.
    _server: Box<dyn Any>,
    url: String,
    pub connection: Connection,
    source: String,
    /// Digests of the script by the size of its log's blocks.
    loaded: HashMap<usize, String>,
    block: usize,
}

/// The line of the script that says how many records a block has.
const BLOCK_LINE: &str = "local BLOCK = 18\n";

impl Lua {
    /// On the Redis with this URL; keeps its server, if it has one.
    pub fn at(url: String, server: impl Any) -> Self {
        let mut lua = Lua {
            connection: connect(&url),
            _server: Box::new(server),
            url,
            source: String::new(),
            loaded: HashMap::new(),
            block: 18,
        };
        lua.use_script(script::DECIDE);
        lua
    }

    /// Another connection to the same Redis.
    pub fn another(&self) -> Connection {
        connect(&self.url)
    }

    /// Another script: one with a bug that the tests have to find.
    pub fn use_script(&mut self, source: &str) {
        source.clone_into(&mut self.source);
        self.loaded.clear();
        self.use_blocks_of(18);
    }

    /// Small blocks make long logs of short histories.
    pub fn use_blocks_of(&mut self, records: usize) {
        self.block = records;
        if self.loaded.contains_key(&records) {
            return;
        }
        assert!(self.source.contains(BLOCK_LINE), "no line {BLOCK_LINE}");
        let line = format!("local BLOCK = {records}\n");
        let source = self.source.replace(BLOCK_LINE, &line);
        let mut load = redis::cmd("SCRIPT");
        let sha = load.arg("LOAD").arg(source).query(&mut self.connection);
        let sha = sha.expect("a script that compiles");
        self.loaded.insert(records, sha);
    }

    /// What the script says of an operation with a not-after time.
    fn call<O: Operation>(
        &mut self,
        operation: &O,
        not_after_us: Option<u64>,
        now_us: Option<u64>,
    ) -> Result<Reply<O::Answer>, String> {
        let keys: Vec<&str> = operation.keys().collect();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.loaded[&self.block]).arg(keys.len());
        call.arg(keys).arg(operation.request(not_after_us));
        if let Some(now_us) = now_us {
            call.arg(script::clock(now_us));
        }
        let reply: RedisResult<Vec<u8>> = call.query(&mut self.connection);
        operation.read(&reply.map_err(text)?).map_err(text)
    }

    /// Without a time, by Redis's clock.
    pub fn try_decide(
        &mut self,
        now_us: Option<u64>,
        batch: &Batch,
    ) -> Result<Vec<Outcome>, String> {
        let each = done(self.reply(now_us, None, batch)?)?;
        each.into_iter().map(|said| said.map_err(text)).collect()
    }

    /// What the script says, if it is called with a not-after time.
    pub fn reply(
        &mut self,
        now_us: Option<u64>,
        not_after_us: Option<u64>,
        batch: &Batch,
    ) -> Result<Reply<Outcome>, String> {
        self.call(batch, not_after_us.or(by_then(now_us)), now_us)
    }

    /// What the script says to each decision, those over keys that it cannot read included.
    pub fn each(&mut self, now_us: u64, batch: &Batch) -> Vec<Result<Outcome, BrokenState>> {
        let reply = self.reply(Some(now_us), None, batch).expect("a reply");
        done(reply).expect("in time")
    }

    pub fn decide(&mut self, now_us: Option<u64>, batch: &Batch) -> Vec<Outcome> {
        self.try_decide(now_us, batch).expect("outcomes")
    }

    /// The same batch at each of these times, in one pipeline.
    pub fn decide_all(&mut self, times: &[u64], batch: &Batch) {
        let mut pipe = redis::pipe();
        let keys: Vec<&str> = batch.keys().collect();
        for now_us in times {
            pipe.cmd("EVALSHA")
                .arg(&self.loaded[&self.block])
                .arg(keys.len())
                .arg(&keys)
                .arg(batch.request(by_then(Some(*now_us))))
                .arg(script::clock(*now_us))
                .ignore();
        }
        pipe.exec(&mut self.connection).expect("answers");
    }

    /// What became of each settlement.
    pub fn settle(
        &mut self,
        now_us: Option<u64>,
        settlements: &Settlements,
    ) -> Result<Vec<Done>, String> {
        let each = self.try_settle(now_us, by_then(now_us), settlements)?;
        let each = done(each)?.into_iter();
        each.map(|one| one.map(|settled| settled.done).map_err(text))
            .collect()
    }

    /// What the script says of settlements with a not-after time.
    pub fn try_settle(
        &mut self,
        now_us: Option<u64>,
        not_after_us: Option<u64>,
        settlements: &Settlements,
    ) -> Result<Reply<Settled>, String> {
        self.call(settlements, not_after_us, now_us)
    }

    /// Another command, in words.
    pub fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        let answer = command.arg(&words[1..]).query(&mut self.connection);
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Deletes all keys of its Redis.
    pub fn forget_everything(&mut self) {
        self.ask(&["FLUSHDB"])
    }

    pub fn reset(&mut self, key: &str) {
        self.ask(&["UNLINK", key])
    }

    /// Milliseconds that a key still has; -1 if it has no end, -2 if it is not there.
    pub fn ttl_ms(&mut self, key: &str) -> i64 {
        self.ask(&["PTTL", key])
    }

    /// Redis's own clock, in milliseconds since 1970.
    pub fn clock_ms(&mut self) -> u64 {
        let (seconds, us): (u64, u64) = self.ask(&["TIME"]);
        seconds * 1_000 + us / 1_000
    }

    /// When a key ends by that clock.
    pub fn end_ms(&mut self, key: &str) -> Option<u64> {
        u64::try_from(self.ask::<i64>(&["PEXPIRETIME", key])).ok()
    }
}

/// A time that the call is not too late for, and often one on the other side of a calendar's edge.
fn by_then(now_us: Option<u64>) -> Option<u64> {
    now_us.map(|now_us| now_us + now_us % 20 * 3_600_000_000)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn done<T>(reply: Reply<T>) -> Result<Vec<Result<T, BrokenState>>, String> {
    match reply.each {
        Some(each) => Ok(each),
        None => Err(format!("late, at {}", reply.now_us)),
    }
}

fn connect(url: &str) -> Connection {
    let client = redis::Client::open(url).expect("a URL");
    client.get_connection().expect("a Redis that answers")
}
