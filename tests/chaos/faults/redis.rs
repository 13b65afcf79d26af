//! A single Redis: killed, stopped, out of memory, read-only, loading, taken by others, emptied, its clock stepped.

use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::from_words;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::campaign::Campaign;
use super::super::chain::{Chain, Place};
use super::super::fault::{Fault, Noticed};
use super::super::load::Load;
use super::super::rules::WINDOW_US;

/// A minute: many windows.
const STEP_US: i64 = 60_000_000;
/// Requests that no cached denial answers come several times in this time.
const REPAIRED_WITHIN: Duration = Duration::from_millis(500);
/// Keys of a snapshot, and how long Redis takes to load each: more than two seconds in all.
const KEYS: u32 = 20_000;
const LOADS_FOR: Duration = Duration::from_secs(2);
const KEY_DELAY_US: u32 = 125;

/// Sends a command whose answer does not matter.
async fn send(chain: &mut Chain, words: &str) {
    let _: redis::Value = chain.redis().command(words).await;
}

/// A fault that a command causes, and another ends.
async fn by_commands(campaign: &mut Campaign, fault: Fault, [breaks, mends]: [&str; 2]) {
    let breaks = async |chain: &mut Chain, _: &Load| send(chain, breaks).await;
    let mends = async |chain: &mut Chain, _: &Load| send(chain, mends).await;
    campaign.run(fault, breaks, mends).await;
}

/// What Redis evicts from now on: each event's payload is a key.
async fn evictions(chain: &mut Chain) -> PubSubStream {
    send(chain, "CONFIG SET notify-keyspace-events Ee").await;
    let client = redis::Client::open(chain.redis().url()).expect("its address");
    let mut events = client.get_async_pubsub().await.expect("a connection");
    let subscribed = events.subscribe("__keyevent@0__:evicted").await;
    subscribed.expect("a subscription");
    events.into_on_message()
}

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("Redis killed, and empty when it returns")
        .forgets()
        .away();
    campaign
        .run(
            fault.in_short_form(),
            async |chain, _| chain.redis().kill(),
            async |chain, _| chain.redis().restart().await,
        )
        .await;
    let fault = Fault::new("Redis stopped (SIGSTOP)").once_more().away();
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
            fault.away().cuts(0),
            async |chain, _| {
                // Nothing can create a file there.
                send(chain, "CONFIG SET dir /proc").await;
                send(chain, "BGSAVE").await;
                let redis = chain.redis();
                eventually("the snapshot fails", async || {
                    let info: String = redis.command("INFO persistence").await;
                    info.contains("rdb_last_bgsave_status:err")
                })
                .await;
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
    by_commands(
        campaign,
        fault.away().cuts(0),
        [
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
        ],
    )
    .await;
    let fault = Fault::new("Redis restarted, loading its snapshot for two seconds").forgets();
    campaign
        .run(
            fault.lasts(LOADS_FOR).away(),
            async |chain, _| {
                send(chain, &format!("DEBUG POPULATE {KEYS} filler")).await;
                send(chain, "SAVE").await;
                let delay = KEY_DELAY_US.to_string();
                let slow = ["--key-load-delay", &delay];
                let often = ["--loading-process-events-interval-bytes", "1024"];
                chain.redis().restart_loading(&[slow, often].concat()).await;
            },
            async |chain, _| {
                let info: String = chain.redis().command("INFO persistence").await;
                assert!(info.contains("\nloading:1\r"), "it loads no longer: {info}");
                chain.redis().loaded().await;
            },
        )
        .await;
    strangers(campaign).await;
    forgets(campaign).await;
    clock(campaign).await;
}

/// Redis's clock, in microseconds.
async fn time_us(chain: &mut Chain) -> i64 {
    let (seconds, us): (i64, i64) = chain.redis().command("TIME").await;
    seconds * 1_000_000 + us
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
    let fault = Fault::new("a stranger's script that never ends (BUSY), until SCRIPT KILL");
    campaign
        .run(
            fault.once_more().away(),
            async |chain, _| {
                send(chain, "CONFIG SET busy-reply-threshold 200").await;
                let mut connection = chain.redis().connection().await;
                let mut eval = redis::cmd("EVAL");
                let eval = eval.arg("while true do end").arg(0);
                // Nobody waits for its end.
                let late: redis::RedisResult<()> = eval.query_async(&mut connection).await;
                assert!(late.is_err(), "it blocks");
            },
            // Redis answers OK only if it has killed a script.
            async |chain, _| send(chain, "SCRIPT KILL").await,
        )
        .await;
    let fault = Fault::new("strangers have all of Redis's connections (maxclients)").once_more();
    let held = std::cell::RefCell::new(None);
    campaign
        .run(
            fault.away(),
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
    by_commands(
        campaign,
        fault.in_short_form().away().cuts(0),
        ["CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"],
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
                let mut evicted = evictions(chain).await;
                send(chain, &format!("CONFIG SET maxmemory {half}")).await;
                let ours = async {
                    while let Some(event) = evicted.next().await {
                        let key: String = event.get_payload().expect("a key");
                        if !key.starts_with("filler:") && !key.starts_with("sg:{sidecars}:") {
                            return;
                        }
                    }
                };
                let waited = tokio::time::timeout(Duration::from_secs(30), ours).await;
                waited.expect("a key of ours is among those that Redis evicts");
            },
            async |chain, _| send(chain, "CONFIG SET maxmemory 0").await,
        )
        .await;
}

async fn forgets(campaign: &mut Campaign) {
    let fault = Fault::new("SCRIPT FLUSH").unnoticed().lasts(Duration::ZERO);
    campaign
        .run_once(fault, async |chain, _| send(chain, "SCRIPT FLUSH").await)
        .await;
    let fault = Fault::new("SCRIPT KILL while calls of 480 windows run (UNKILLABLE)");
    campaign
        .run_once(
            // A threshold of a millisecond also makes Redis refuse other calls meanwhile, and then it counts as down.
            fault.noticed(Noticed::Perhaps).cuts(0).once_more(),
            async |chain, _| {
                send(chain, "CONFIG SET busy-reply-threshold 1").await;
                let found = killing(chain).await;
                // Redis looks for it once in 100,000 instructions of Lua, and by then the script writes.
                assert!(found > 0, "no SCRIPT KILL found a script of ours");
                send(chain, "CONFIG SET busy-reply-threshold 5000").await;
            },
        )
        .await;
    let fault = Fault::new("FLUSHALL").forgets().unnoticed();
    campaign
        .run_once(fault, async |chain, _| send(chain, "FLUSHALL").await)
        .await;
}

/// Sends SCRIPT KILL all the time while the sidecar decides over as many windows as one call may have. Returns how often it
/// found a script.
async fn killing(chain: &mut Chain) -> usize {
    let address = ("127.0.0.1", chain.redis().port());
    let (mut answers, mut kills) = TcpStream::connect(address)
        .await
        .expect("Redis")
        .into_split();
    let calls = async {
        for call in 0..100 {
            chain.decide_huge(call).await;
        }
    };
    let killing = async {
        while kills.write_all(b"SCRIPT KILL\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut text = String::new();
    tokio::select! {
        () = calls => {}
        () = killing => panic!("Redis ended the connection"),
    }
    // Redis ends its half of the connection when it has answered all.
    drop(kills);
    let read = answers.read_to_string(&mut text).await;
    read.expect("answers");
    let found = |line: &&str| line.starts_with("-UNKILLABLE") || line.starts_with("+OK");
    text.lines().filter(found).count()
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
                async |chain, _| {
                    let before = time_us(chain).await;
                    chain.clock().set_ahead_us(ahead_us);
                    let stepped = time_us(chain).await - before;
                    let off = (stepped - ahead_us).abs();
                    assert!(off < STEP_US / 2, "Redis's clock stepped by {stepped} us");
                },
                // The first request that reaches the store repairs the state; one window later, all is as before.
                async |_, _| {
                    let window = Duration::from_micros(WINDOW_US);
                    tokio::time::sleep(REPAIRED_WITHIN + window).await;
                },
            )
            .await;
    }
}
