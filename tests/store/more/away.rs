//! A Redis that is silent, moves or becomes a replica; decisions that it may have made.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, failures, is_soon_back, policy, sidecar, stays_unavailable, verdict,
    wait_until_back,
};
use sluicegate_tests::client::post;
use sluicegate_tests::clock::SteppedClock;
use sluicegate_tests::link::{Link, Packets};
use sluicegate_tests::name;
use sluicegate_tests::process::{Process, eventually};
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::{self, Redis};
use sluicegate_tests::sidecar::Sidecar;

use super::super::away::{TIMEOUT, sidecar_behind_a_proxy};

/// Redis carries it out, its answer comes too late, and meanwhile Redis counts as down.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_redis_may_have_made_is_not_made_again_by_a_share() {
    // The order of three moments of one second is the test, so a machine that stalls there begins again.
    for _ in 0..10 {
        if is_not_made_again().await {
            return;
        }
    }
    panic!("the machine stands still all the time");
}

/// Whether the moments were in that order.
async fn is_not_made_again() -> bool {
    /// Each way: a call arrives in time, and its answer does not.
    const SLOW: Duration = Duration::from_millis(600);
    const TIMEOUT: Duration = Duration::from_secs(1);
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let store = format!("{{ url: '{}', connections: 1 }}", proxy.url());
    let sidecar = Sidecar::alone(&policy(store, "1s", 10).replace("deny", "share")).await;
    sidecar.knows_of(1).await;
    let check = json!({ "limit": "per-key", "key": "other" });
    let taken = sidecar.answer(json!([{ "checks": [check], "receipt": true }]));
    let receipt = taken.await["verdicts"][0]["receipt"][0].take();
    let entry = json!({ "limit": "per-key", "key": "other", "receipt": receipt, "units": 0 });
    let settle = json!({ "settles": [entry] }).to_string();
    let (url, body) = (sidecar.url("/v1/settle"), || settle.clone());
    proxy.set(Mode::Slow(SLOW));
    let since = Instant::now();
    // Two calls without an answer, after a second: Redis counts as down 100 ms later, and the decision's call ends after that.
    let (_, _, (asked, outcome)) = tokio::join!(post(&url, body()), post(&url, body()), async {
        tokio::time::sleep(TIMEOUT / 2).await;
        (since.elapsed(), decide(&sidecar, "k").await)
    });
    if asked > TIMEOUT * 3 / 4 || since.elapsed() > 2 * TIMEOUT {
        return false;
    }
    assert_eq!(outcome, "unavailable", "{}", sidecar.log());
    eventually("its share decides", async || {
        decide(&sidecar, "later").await == "admitted"
    })
    .await;
    proxy.set(Mode::Pass);
    wait_until_back(&sidecar, "k").await;
    sidecar.written_back().await;
    let left = verdict(&sidecar, "k").await["remaining"].as_u64().unwrap();
    assert_eq!(left, 10 - 3, "Redis made it, and the two after it");
    true
}

/// Redis does not carry out calls when it resumes that were sent before the sidecar knew that it had stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_answered_unavailable_takes_nothing_when_redis_resumes() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), &format!("{TIMEOUT:?}"), PLENTY).await;
    for _ in 0..2 {
        wait_until_back(&sidecar, "warm").await;
        redis.pause();
        let outcomes = join_all((0..20).map(|_| decide(&sidecar, "k"))).await;
        assert_eq!(outcomes, ["unavailable"; 20]);
        // The deadline of what was sent before the sidecar knew.
        tokio::time::sleep(TIMEOUT).await;
        redis.resume();
    }
    wait_until_back(&sidecar, "warm").await;
    let last = verdict(&sidecar, "k").await;
    assert_eq!(last["remaining"], PLENTY - 1, "{last}");
}

/// Without traffic, the sidecar probes the connection and replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_idle_connection_is_replaced() {
    let (redis, proxy, sidecar) = sidecar_behind_a_proxy(PATIENT).await;
    let before = proxy.accepted();
    proxy.set(Mode::Swallow);
    eventually("other connections are tried", async || {
        proxy.accepted() > before + 2
    })
    .await;
    proxy.set(Mode::Pass);
    // From here on Redis is asked by connections that pass.
    let calls = redis.script_calls().await;
    eventually("one is in use", async || {
        redis.script_calls().await > calls + 3 && sidecar.metric("sluicegate_store_up").await == 1.0
    })
    .await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert_eq!(failures(&sidecar, "timeout").await, 1.0, "the loss");
}

#[tokio::test]
async fn a_peer_whose_packets_are_dropped_is_left() {
    let link = Link::start();
    let bind = [
        "--bind",
        "127.0.0.1",
        &link.server(),
        "--protected-mode",
        "no",
    ];
    let redis = Redis::start_with(&bind).await;
    let store = format!("redis://{}:{}", link.own(), redis.port());
    let sidecar = sidecar(store, TIMEOUT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    link.set(Packets::Drop);
    // Longer than the kernel's first retransmissions are apart.
    for _ in 0..3 {
        stays_unavailable(&sidecar, "k").await;
    }
    link.set(Packets::Pass);
    is_soon_back(&sidecar, "k", "packets dropped").await;
}

/// The old primary stays up as a replica, and new connections lead to the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_is_followed() {
    let (old, new) = (Redis::start().await, Redis::start().await);
    let _: () = new
        .command(&format!("REPLICAOF 127.0.0.1 {}", old.port()))
        .await;
    let proxy = Proxy::start(old.port()).await;
    let sidecar = sidecar(proxy.url(), PATIENT, 2).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    eventually("the replica has it", async || !new.keys().await.is_empty()).await;
    let _: () = new.command("REPLICAOF NO ONE").await;
    let _: () = old
        .command(&format!("REPLICAOF 127.0.0.1 {}", new.port()))
        .await;
    proxy.lead_to(new.port());
    is_soon_back(&sidecar, "k", "planned failover").await;
    let outcome = decide(&sidecar, "k").await;
    assert_eq!(outcome, "denied", "it was admitted twice");
}

#[tokio::test]
async fn a_name_that_moves_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut old, sidecar) = at_a_name(folder.path()).await;
    let _new = elsewhere(folder.path(), old.port());
    old.kill();
    decide(&sidecar, "k").await;
    stays_unavailable(&sidecar, "k").await;
    name::leads_to(MOVED, folder.path());
    is_soon_back(&sidecar, "k", "a name that moved").await;
}

/// Where the name leads when it has moved.
pub const MOVED: &str = "127.0.0.2";

/// A Redis with a name, and a sidecar that has it by that name.
pub async fn at_a_name(folder: &Path) -> (Redis, Sidecar) {
    let old = Redis::start().await;
    name::leads_to("127.0.0.1", folder);
    let may = Command::new("unshare").args(["-m", "true"]).status();
    let may = may.is_ok_and(|status| status.success());
    assert!(may, "a mount namespace: run as root");
    let store = format!("redis://{}:{}", name::NAME, old.port());
    let text = policy(&store, "500ms", PLENTY);
    let program = name::program(folder);
    let sidecar = Sidecar::with(&text).program(&program).alone().await;
    wait_until_back(&sidecar, "k").await;
    (old, sidecar)
}

/// A Redis at the same port of another address, so that only the name leads there.
pub fn elsewhere(folder: &Path, port: u16) -> Process {
    let port = port.to_string();
    let arguments = ["--bind", "127.0.0.2", "--port", &port, "--save", ""];
    let mut command = Command::new(redis::program());
    command.args(arguments).current_dir(folder);
    Process::start(&mut command, &folder.join("redis.log"), "")
}

/// The new primary's clock is behind, and the sidecar holds a cached denial from before the failover.
#[tokio::test(flavor = "multi_thread")]
async fn no_denial_outlasts_one_window_after_a_failover_to_a_clock_behind() {
    let old = Redis::start().await;
    let (clock, _folder) = clock_behind();
    let new = Redis::start_in(&[], &clock.environment()).await;
    let proxy = Proxy::start(old.port()).await;
    let sidecar = Sidecar::alone(&one_in_a_window(proxy.url())).await;
    let words = format!("REPLICAOF 127.0.0.1 {}", old.port());
    let _: () = new.command(&words).await;
    let has = async |at_least: i64| new.command::<i64>("DBSIZE").await >= at_least;
    let _: () = old.command("SET warm 1").await;
    eventually("the replica follows", async || has(1).await).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert_eq!(decide(&sidecar, "k").await, "denied");
    eventually("the replica has it", async || has(2).await).await;
    let _: () = new.command("REPLICAOF NO ONE").await;
    let since = Instant::now();
    proxy.lead_to(new.port());
    let _: i64 = old.command("CLIENT KILL TYPE normal SKIPME yes").await;
    unlocks(&sidecar, since, async || {}).await;
}

/// Of the limit in [`one_in_a_window`].
const WINDOW: Duration = Duration::from_secs(8);

/// A policy whose denials are cached for longer than its window.
pub fn one_in_a_window(store: String) -> String {
    policy(store, PATIENT, 1).replace("1h", &format!("{WINDOW:?}")) + "denial_ttl: 60s\n"
}

/// A clock that is behind by more than two windows.
pub fn clock_behind() -> (SteppedClock, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let clock = SteppedClock::build(folder.path());
    clock.set_ahead_us(-20_000_000);
    (clock, folder)
}

/// Asks until the key is admitted: in a window's time. If the cached denial lasted until its end, no read would repair the
/// state before, and it would take almost two. `others` asks for other keys, or for none.
pub async fn unlocks(sidecar: &Sidecar, since: Instant, others: impl AsyncFn()) {
    eventually("the key is admitted again", async || {
        others().await;
        decide(sidecar, "k").await == "admitted"
    })
    .await;
    let locked = since.elapsed();
    println!("measured: locked for {locked:?} with a window of {WINDOW:?}");
    // The rest is for a machine that stalls.
    assert!(locked < WINDOW * 7 / 4, "{locked:?}");
}
