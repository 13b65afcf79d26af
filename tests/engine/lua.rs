//! The script on a real Redis, asked synchronously and one call at a time.

use redis::{Connection, RedisResult};
use sluicegate_engine::script::{self, GiveBack};
use sluicegate_engine::{Batch, Bucket, Outcome};
use sluicegate_tests::redis::Redis;
use std::collections::HashMap;

/// A Redis of its own, a connection to it, and the scripts that it has loaded.
pub struct Lua {
    _redis: Redis,
    pub connection: Connection,
    /// By the size of the log's blocks.
    scripts: HashMap<usize, String>,
    block: usize,
}

impl Lua {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let redis = runtime.expect("a runtime").block_on(Redis::start());
        let client = redis::Client::open(redis.url()).expect("a URL");
        let connection = client.get_connection().expect("a Redis that answers");
        let mut lua = Lua {
            _redis: redis,
            connection,
            scripts: HashMap::new(),
            block: 18,
        };
        lua.use_blocks_of(18);
        lua
    }

    /// Small blocks make long logs of short histories.
    pub fn use_blocks_of(&mut self, records: usize) {
        self.block = records;
        if self.scripts.contains_key(&records) {
            return;
        }
        let source = source();
        let line = "local BLOCK = 18\n";
        assert!(source.contains(line), "decide.lua has a line: {line}");
        let source = source.replace(line, &format!("local BLOCK = {records}\n"));
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(source)
            .query(&mut self.connection);
        self.scripts
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
        call.arg(&self.scripts[&self.block])
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

/// The script under test: the product's, or what the mutation check names.
fn source() -> String {
    match std::env::var("SLUICEGATE_SCRIPT") {
        Ok(path) => std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")),
        Err(_) => script::DECIDE.to_owned(),
    }
}
