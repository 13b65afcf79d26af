//! A Redis of its own for the script. Apart from `lua.rs`, which the fuzzer (tests/fuzz) uses with a Redis that it was given.

use super::lua::Lua;
use sluicegate_tests::redis::Redis;

impl Lua {
    /// On a Redis that ends with it.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let redis = runtime.expect("a runtime").block_on(Redis::start());
        Lua::at(redis.url(), redis)
    }
}
