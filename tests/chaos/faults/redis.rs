//! A single Redis: killed, stopped, out of memory, read-only, loading, taken by others, emptied, its clock stepped.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use sluicegate_tests::process::POLL;
use sluicegate_tests::redis::from_words;

use crate::campaign::Campaign;
use crate::chain::{Chain, Place};
use crate::fault::Fault;
use crate::rules::WINDOW_US;

/// A minute: many windows.
const STEP_US: i64 = 60_000_000;
/// Requests that no cached denial answers come several times in this time.
const REPAIRED_WITHIN: Duration = Duration::from_millis(500);
/// Keys of a snapshot, and how long Redis takes to load each: more than two seconds in all.
const KEYS: u32 = 20_000;
const KEY_DELAY_US: u32 = 125;

/// Sends a command whose answer does not matter.
async fn send(chain: &mut Chain, words: &str) {
    let _: redis::Value = chain.redis().command(words).await;
}

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("Redis killed, and empty when it returns").forgets();
    campaign
        .run(
            fault.in_short_form(),
            async |chain, _| chain.redis().kill(),
            async |chain, _| chain.redis().restart().await,
        )
        .await;
    let fault = Fault::new("Redis stopped (SIGSTOP)").once_more();
    campaign
        .run(
            fault.in_short_form(),
            async |chain, _| chain.redis().pause(),
            async |chain, _| chain.redis().resume(),
        )
        .await;
    memory(campaign).await;
    let fault = Fault::new("Redis cannot write its snapshot (as with a full disk)").once_more();
    campaign
        .run(
            fault,
            async |chain, _| {
                // Nothing can create a file there.
                send(chain, "CONFIG SET dir /proc").await;
                send(chain, "BGSAVE").await;
                let redis = chain.redis();
                while redis
                    .command::<String>("INFO persistence")
                    .await
                    .contains("rdb_last_bgsave_status:ok")
                {
                    tokio::time::sleep(POLL).await;
                }
                let mut save = redis::cmd("CONFIG");
                save.arg(&["SET", "save", "3600 1"]);
                let mut connection = redis.connection().await;
                let set: redis::RedisResult<()> = save.query_async(&mut connection).await;
                set.expect("a schedule, which makes Redis refuse to write");
            },
            async |chain, _| send(chain, "CONFIG SET stop-writes-on-bgsave-error no").await,
        )
        .await;
    let fault = Fault::new("Redis read-only (no replica that it demands)").once_more();
    campaign
        .run(
            fault,
            async |chain, _| send(chain, "CONFIG SET min-replicas-to-write 1").await,
            async |chain, _| send(chain, "CONFIG SET min-replicas-to-write 0").await,
        )
        .await;
    let fault = Fault::new("Redis restarted, loading its snapshot for two seconds").forgets();
    campaign
        .run(
            fault.lasts(Duration::ZERO),
            async |chain, _| {
                send(chain, &format!("DEBUG POPULATE {KEYS} filler")).await;
                send(chain, "SAVE").await;
                let delay = KEY_DELAY_US.to_string();
                let slow = ["--key-load-delay", &delay];
                let often = ["--loading-process-events-interval-bytes", "1024"];
                chain.redis().restart_loading(&[slow, often].concat()).await;
            },
            async |chain, _| chain.redis().loaded().await,
        )
        .await;
    strangers(campaign).await;
    forgets(campaign).await;
    clock(campaign).await;
}

/// What other clients of the same Redis do to it.
async fn strangers(campaign: &mut Campaign) {
    let fault = Fault::new("a stranger's script blocks Redis for more than three seconds (BUSY)")
        .once_more();
    campaign
        .run(
            fault.lasts(Duration::from_millis(3_500)),
            async |chain, _| {
                send(chain, "CONFIG SET busy-reply-threshold 200").await;
                let mut connection = chain.redis().connection().await;
                let script = "local t = redis.call('TIME')[1] + 4; while redis.call('TIME')[1] + 0 < t do end";
                let mut eval = redis::cmd("EVAL");
                // Nobody waits for its end.
                let late: redis::RedisResult<()> =
                    eval.arg(script).arg(0).query_async(&mut connection).await;
                assert!(late.is_err(), "it blocks");
            },
            async |_, _| {},
        )
        .await;
    let fault = Fault::new("strangers have all of Redis's connections (maxclients)").once_more();
    let held = std::cell::RefCell::new(None);
    campaign
        .run(
            fault,
            async |chain, _| {
                let mut connection = chain.redis().connection().await;
                for command in [
                    "CONFIG SET maxclients 1",
                    "CLIENT KILL TYPE normal SKIPME yes",
                ] {
                    send_by(&mut connection, command).await;
                }
                held.replace(Some(connection));
            },
            async |_, _| {
                let mut connection = held.take().expect("the only connection");
                send_by(&mut connection, "CONFIG SET maxclients 10000").await;
            },
        )
        .await;
}

/// Sends a command by a connection that is open.
async fn send_by(connection: &mut MultiplexedConnection, words: &str) {
    let answer: redis::RedisResult<redis::Value> = from_words(words).query_async(connection).await;
    answer.expect("a command that Redis carries out");
}

async fn memory(campaign: &mut Campaign) {
    let fault = Fault::new("Redis out of memory (noeviction)").once_more();
    campaign
        .run(
            fault.in_short_form(),
            async |chain, _| send(chain, "CONFIG SET maxmemory 1").await,
            async |chain, _| send(chain, "CONFIG SET maxmemory 0").await,
        )
        .await;
    let fault = Fault::new("Redis evicts half of its keys (allkeys-random)").forgets();
    campaign
        .run(
            fault.unnoticed().lasts(Duration::ZERO),
            async |chain, _| {
                send(chain, "CONFIG SET maxmemory-policy allkeys-random").await;
                send(chain, "DEBUG POPULATE 600 filler 1000").await;
                let info: String = chain.redis().command("INFO memory").await;
                let used = info
                    .lines()
                    .find_map(|line| line.strip_prefix("used_memory:"));
                let used: u64 = used
                    .and_then(|bytes| bytes.parse().ok())
                    .expect("its memory");
                let half = used - 600 * 1_000 / 2;
                send(chain, &format!("CONFIG SET maxmemory {half}")).await;
                let redis = chain.redis();
                while redis
                    .command::<String>("INFO stats")
                    .await
                    .contains("evicted_keys:0\r")
                {
                    tokio::time::sleep(POLL).await;
                }
            },
            async |chain, _| send(chain, "CONFIG SET maxmemory 0").await,
        )
        .await;
}

async fn forgets(campaign: &mut Campaign) {
    let fault = Fault::new("SCRIPT FLUSH").unnoticed().lasts(Duration::ZERO);
    campaign
        .run(
            fault,
            async |chain, _| send(chain, "SCRIPT FLUSH").await,
            async |_, _| {},
        )
        .await;
    let fault = Fault::new("SCRIPT KILL, five hundred times").unnoticed();
    campaign
        .run(
            fault.lasts(Duration::ZERO),
            async |chain, _| {
                send(chain, "CONFIG SET busy-reply-threshold 1").await;
                let mut connection = chain.redis().connection().await;
                for _ in 0..500 {
                    let mut kill = redis::cmd("SCRIPT");
                    let answer: redis::RedisResult<()> =
                        kill.arg("KILL").query_async(&mut connection).await;
                    // Mostly there is none to kill, or it has written.
                    drop(answer);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            },
            async |_, _| {},
        )
        .await;
    let fault = Fault::new("FLUSHALL").forgets().unnoticed();
    campaign
        .run(
            fault.lasts(Duration::ZERO),
            async |chain, _| send(chain, "FLUSHALL").await,
            async |_, _| {},
        )
        .await;
}

async fn clock(campaign: &mut Campaign) {
    for (name, ahead_us) in [
        ("Redis's clock steps back by a minute", -STEP_US),
        ("Redis's clock steps forward by a minute", STEP_US),
    ] {
        let mut fault = Fault::new(name).at(Place::SteppedClock).unnoticed();
        fault = fault.lasts(Duration::ZERO).unchecked();
        if ahead_us < 0 {
            fault = fault.in_short_form();
        } else {
            // All windows end at once.
            fault = fault.forgets();
        }
        campaign
            .run(
                fault,
                async |chain, _| chain.clock().set_ahead_us(ahead_us),
                // The first request that reaches the store repairs the state; one window later, all is as before.
                async |_, _| {
                    let window = Duration::from_micros(WINDOW_US);
                    tokio::time::sleep(REPAIRED_WITHIN + window).await;
                },
            )
            .await;
    }
}
