//! A single Redis: killed, stopped, out of memory, read-only, loading, taken by others, emptied, its clock stepped.

use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSubStream};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::{Redis, from_words};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::campaign::Campaign;
use super::super::chain::{Chain, Place};
use super::super::fault::{Fault, Noticed};
use super::super::rules::WINDOW_US;

/// A minute: many windows.
const STEP_US: i64 = 60_000_000;
/// Requests that no cached denial answers come several times in this time.
const REPAIRED_WITHIN: Duration = Duration::from_millis(500);
/// Keys of a snapshot, and how long Redis takes to load each: more than two seconds in all.
const KEYS: u32 = 20_000;
const LOADS_FOR: Duration = Duration::from_secs(2);
const KEY_DELAY_US: u32 = 125;

/// Redis's memory, in bytes.
pub async fn used_memory(redis: &Redis) -> u64 {
    let info: String = redis.command("INFO memory").await;
    let mut lines = info.lines();
    let used = lines.find_map(|line| line.strip_prefix("used_memory:")?.parse().ok());
    used.expect("its memory")
}

/// Sends a command whose answer does not matter.
async fn send(chain: &mut Chain, words: &str) {
    let _: redis::Value = chain.redis().command(words).await;
}

/// A fault that lasts while a setting of Redis is 1.
async fn switched(campaign: &mut Campaign, fault: Fault, setting: &str) {
    let set = async |chain: &mut Chain, to: u8| {
        send(chain, &format!("CONFIG SET {setting} {to}")).await;
    };
    let breaks = async |chain: &mut Chain| set(chain, 1).await;
    let mends = async |chain: &mut Chain| set(chain, 0).await;
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
    let fault = Fault::new("Redis killed, and empty when it returns").forgets();
    let breaks = async |chain: &mut Chain| chain.redis().kill();
    let mends = async |chain: &mut Chain| chain.redis().restart().await;
    campaign
        .run(fault.away().in_short_form(), breaks, mends)
        .await;
    let fault = Fault::new("Redis stopped (SIGSTOP)").once_more().away();
    let breaks = async |chain: &mut Chain| chain.redis().pause();
    let mends = async |chain: &mut Chain| chain.redis().resume();
    campaign.run(fault.in_short_form(), breaks, mends).await;
    memory(campaign).await;
    let fault = Fault::new("Redis cannot write its snapshot (as with a full disk)").once_more();
    let breaks = async |chain: &mut Chain| {
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
        let set = save.exec_async(&mut redis.connection().await).await;
        set.expect("a schedule, which makes Redis refuse to write");
    };
    let mends =
        async |chain: &mut Chain| send(chain, "CONFIG SET stop-writes-on-bgsave-error no").await;
    campaign.run(fault.away().cuts(0), breaks, mends).await;
    let fault = Fault::new("Redis read-only (no replica that it demands)").once_more();
    switched(campaign, fault.away().cuts(0), "min-replicas-to-write").await;
    let fault = Fault::new("Redis restarted, loading its snapshot for two seconds").forgets();
    let breaks = async |chain: &mut Chain| {
        send(chain, &format!("DEBUG POPULATE {KEYS} filler")).await;
        send(chain, "SAVE").await;
        let delay = KEY_DELAY_US.to_string();
        let slow = ["--key-load-delay", &delay];
        let often = ["--loading-process-events-interval-bytes", "1024"];
        chain.redis().restart_loading(&[slow, often].concat()).await;
    };
    let mends = async |chain: &mut Chain| {
        let info: String = chain.redis().command("INFO persistence").await;
        assert!(info.contains("\nloading:1\r"), "it loads no longer: {info}");
        chain.redis().loaded().await;
    };
    let fault = fault.lasts(LOADS_FOR).away();
    campaign.run(fault, breaks, mends).await;
    strangers(campaign).await;
    forgets(campaign).await;
    clock(campaign).await;
}

/// Redis's clock, in microseconds.
async fn time_us(chain: &mut Chain) -> i64 {
    let (seconds, us): (i64, i64) = chain.redis().command("TIME").await;
    seconds * 1_000_000 + us
}

/// Runs a script that Redis soon reports as BUSY.
async fn block(chain: &mut Chain, script: &str) {
    send(chain, "CONFIG SET busy-reply-threshold 200").await;
    let mut connection = chain.redis().connection().await;
    let mut eval = redis::cmd("EVAL");
    // Nobody waits for its end.
    let late = eval.arg(script).arg(0).exec_async(&mut connection).await;
    assert!(late.is_err(), "it blocks");
}

/// What other clients of the same Redis do to it.
async fn strangers(campaign: &mut Campaign) {
    let fault = Fault::new("a stranger's script blocks Redis for more than three seconds (BUSY)")
        .once_more();
    let script = "local t = redis.call('TIME')[1] + 4; while redis.call('TIME')[1] + 0 < t do end";
    let breaks = async |chain: &mut Chain| block(chain, script).await;
    let mends = async |_: &mut Chain| {};
    let fault = fault.lasts(Duration::from_millis(3_500));
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("a stranger's script that never ends (BUSY), until SCRIPT KILL");
    let breaks = async |chain: &mut Chain| block(chain, "while true do end").await;
    // Redis answers OK only if it has killed a script.
    let mends = async |chain: &mut Chain| send(chain, "SCRIPT KILL").await;
    campaign.run(fault.once_more().away(), breaks, mends).await;
    let fault = Fault::new("strangers have all of Redis's connections (maxclients)").once_more();
    let held = std::cell::RefCell::new(None);
    let breaks = async |chain: &mut Chain| {
        let mut connection = chain.redis().connection().await;
        send_by(&mut connection, "CONFIG SET maxclients 1").await;
        send_by(&mut connection, "CLIENT KILL TYPE normal SKIPME yes").await;
        held.replace(Some(connection));
    };
    let mends = async |_: &mut Chain| {
        let mut connection = held.take().expect("the only connection");
        send_by(&mut connection, "CONFIG SET maxclients 10000").await;
    };
    campaign.run(fault.away(), breaks, mends).await;
}

/// Sends a command by a connection that is open.
async fn send_by(connection: &mut MultiplexedConnection, words: &str) {
    let answer: redis::RedisResult<redis::Value> = from_words(words).query_async(connection).await;
    answer.expect("a command that Redis carries out");
}

async fn memory(campaign: &mut Campaign) {
    let fault = Fault::new("Redis out of memory (noeviction)").once_more();
    let fault = fault.in_short_form().away().cuts(0);
    switched(campaign, fault, "maxmemory").await;
    let fault = Fault::new("Redis evicts half of its keys (allkeys-random)").forgets();
    let breaks = async |chain: &mut Chain| {
        send(chain, "CONFIG SET maxmemory-policy allkeys-random").await;
        send(chain, "DEBUG POPULATE 600 filler 1000").await;
        let half = used_memory(chain.redis()).await - 600 * 1_000 / 2;
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
    };
    let mends = async |chain: &mut Chain| send(chain, "CONFIG SET maxmemory 0").await;
    let fault = fault.unnoticed().at_once();
    campaign.run(fault, breaks, mends).await;
}

async fn forgets(campaign: &mut Campaign) {
    let fault = Fault::new("SCRIPT FLUSH").unnoticed().at_once();
    let breaks = async |chain: &mut Chain| send(chain, "SCRIPT FLUSH").await;
    campaign.run_once(fault, breaks).await;
    let fault = Fault::new("SCRIPT KILL while calls of 480 windows run (UNKILLABLE)");
    let breaks = async |chain: &mut Chain| {
        send(chain, "CONFIG SET busy-reply-threshold 1").await;
        let found = killing(chain).await;
        // Redis looks for it once in 100,000 instructions of Lua, and by then the script writes.
        assert!(found > 0, "no SCRIPT KILL found a script of ours");
        send(chain, "CONFIG SET busy-reply-threshold 5000").await;
    };
    // A threshold of a millisecond also makes Redis refuse other calls meanwhile, and then it counts as down.
    let fault = fault.noticed(Noticed::Perhaps).cuts(0).once_more();
    campaign.run_once(fault, breaks).await;
    let fault = Fault::new("FLUSHALL").forgets().unnoticed();
    let breaks = async |chain: &mut Chain| send(chain, "FLUSHALL").await;
    campaign.run_once(fault, breaks).await;
}

/// Sends SCRIPT KILL all the time while the sidecar decides over as many windows as one call may have. Returns how often it
/// found a script.
async fn killing(chain: &mut Chain) -> usize {
    let address = ("127.0.0.1", chain.redis().port());
    let connection = TcpStream::connect(address).await;
    let (mut answers, mut kills) = connection.expect("Redis").into_split();
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
    let back = Fault::new("Redis's clock steps back by a minute").in_short_form();
    // All windows end at once.
    let forward = Fault::new("Redis's clock steps forward by a minute").forgets();
    for (fault, ahead_us) in [(back, -STEP_US), (forward, STEP_US)] {
        let fault = fault.at(Place::SteppedClock).unnoticed();
        let fault = fault.at_once().unchecked();
        let breaks = async |chain: &mut Chain| {
            let before = time_us(chain).await;
            chain.clock().set_ahead_us(ahead_us);
            let stepped = time_us(chain).await - before;
            let off = (stepped - ahead_us).abs();
            assert!(off < STEP_US / 2, "Redis's clock stepped by {stepped} us");
        };
        // The first request that reaches the store repairs the state; one window later, all is as before.
        let mends = async |_: &mut Chain| {
            let window = Duration::from_micros(WINDOW_US);
            tokio::time::sleep(REPAIRED_WITHIN + window).await;
        };
        campaign.run(fault, breaks, mends).await;
    }
}
