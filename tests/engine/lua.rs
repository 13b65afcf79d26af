//! The script on a real Redis, asked synchronously and one call at a time.

use redis::{Connection, RedisResult};
use sluicegate_engine::script::{self, GiveBack};
use sluicegate_engine::{Batch, Bucket, Outcome, Returns};
use sluicegate_tests::redis::Redis;
use std::collections::HashMap;

/// A Redis of its own, a connection to it, and the script that it has loaded.
pub struct Lua {
    redis: Redis,
    pub connection: Connection,
    source: String,
    /// Digests of the script by the size of its log's blocks.
    loaded: HashMap<usize, String>,
    block: usize,
}

/// The line of the script that says how many records a block has.
const BLOCK_LINE: &str = "local BLOCK = 18\n";

impl Lua {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let redis = runtime.expect("a runtime").block_on(Redis::start());
        let connection = connect(&redis);
        let mut lua = Lua {
            redis,
            connection,
            source: String::new(),
            loaded: HashMap::new(),
            block: 18,
        };
        lua.use_script(script::DECIDE);
        lua
    }

    /// Another connection to the same Redis.
    pub fn another(&self) -> Connection {
        connect(&self.redis)
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
        self.loaded
            .insert(records, sha.expect("a script that compiles"));
    }

    fn call<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a str>,
        arguments: Vec<Vec<u8>>,
        now_us: Option<u64>,
    ) -> RedisResult<Vec<u8>> {
        let keys: Vec<&str> = keys.collect();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.loaded[&self.block])
            .arg(keys.len())
            .arg(keys)
            .arg(arguments);
        if let Some(now_us) = now_us {
            call.arg(script::clock(now_us));
        }
        call.query(&mut self.connection)
    }

    /// Without a time, by Redis's clock.
    pub fn try_decide(
        &mut self,
        now_us: Option<u64>,
        batch: &Batch,
    ) -> Result<Vec<Outcome>, String> {
        let reply = self.call(script::keys(batch), script::arguments(batch), now_us);
        let reply = reply.map_err(|error| error.to_string())?;
        script::outcomes(batch, &reply).map_err(|error| error.to_string())
    }

    pub fn decide(&mut self, now_us: Option<u64>, batch: &Batch) -> Vec<Outcome> {
        self.try_decide(now_us, batch).expect("outcomes")
    }

    /// The same batch at each of these times, in one pipeline.
    pub fn decide_all(&mut self, times: &[u64], batch: &Batch) {
        let mut pipe = redis::pipe();
        let keys: Vec<&str> = script::keys(batch).collect();
        for now_us in times {
            pipe.cmd("EVALSHA")
                .arg(&self.loaded[&self.block])
                .arg(keys.len())
                .arg(&keys)
                .arg(script::arguments(batch))
                .arg(script::clock(*now_us))
                .ignore();
        }
        pipe.exec(&mut self.connection).expect("answers");
    }

    pub fn try_give_back(
        &mut self,
        now_us: Option<u64>,
        bucket: &Bucket,
        cost: u64,
        at_us: u64,
    ) -> Result<u64, String> {
        let returns = [GiveBack {
            bucket,
            cost,
            at_us,
        }];
        let arguments = script::give_back_arguments(&returns);
        let reply = self.call(script::give_back_keys(&returns), arguments, now_us);
        let reply = reply.map_err(|error| error.to_string())?;
        let returned = script::returned(&returns, &reply).map_err(|error| error.to_string())?;
        Ok(returned[0])
    }

    pub fn return_units(&mut self, now_us: Option<u64>, returns: &Returns) -> Vec<u64> {
        let arguments = script::return_arguments(returns);
        let reply = self.call(script::return_keys(returns), arguments, now_us);
        script::returned_units(returns, &reply.expect("a reply")).expect("units")
    }

    pub fn reset(&mut self, key: &str) {
        redis::cmd("UNLINK")
            .arg(key)
            .exec(&mut self.connection)
            .expect("an answer");
    }

    /// Milliseconds that a key still has; -1 if it has no end, -2 if it is not there.
    pub fn ttl_ms(&mut self, key: &str) -> i64 {
        redis::cmd("PTTL")
            .arg(key)
            .query(&mut self.connection)
            .expect("an answer")
    }
}

fn connect(redis: &Redis) -> Connection {
    let client = redis::Client::open(redis.url()).expect("a URL");
    client.get_connection().expect("a Redis that answers")
}
