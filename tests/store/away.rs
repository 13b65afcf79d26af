//! A Redis that dies, pauses, stops answering, moves or becomes a replica.

use serde_json::json;
use std::time::{Duration, Instant};

use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, failures, is_soon_back, logs, policy, sidecar, stays_unavailable,
    wait_until_back,
};
use sluicegate_tests::clock::SteppedClock;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// Short, so that the first failures come soon.
pub const TIMEOUT: &str = "200ms";

#[tokio::test]
async fn a_redis_that_was_killed_is_used_soon_after_its_return() {
    let mut redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), TIMEOUT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    redis.kill();
    // Whatever was under way was cut.
    decide(&sidecar, "k").await;
    stays_unavailable(&sidecar, "k").await;
    redis.restart().await;
    is_soon_back(&sidecar, "k", "Redis killed").await;
}

/// D1: a fleet that gives up its connections when Redis is slow for a moment makes Redis slower. Each is replaced after three
/// seconds without an answer, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_redis_is_used_at_once_over_the_same_connections() {
    let (redis, proxy, sidecar) = sidecar_behind_a_proxy(TIMEOUT).await;
    eventually("both are connected", async || proxy.accepted() == 2).await;
    let (before, since) = (2, Instant::now());
    redis.pause();
    for _ in 0..20 {
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
    }
    redis.resume();
    is_soon_back(&sidecar, "k", "Redis stopped").await;
    let (made, silences) = (proxy.accepted() - before, since.elapsed().as_secs() / 3);
    assert!(made <= 2 * silences, "{made} in {silences} times 3 s");
}

/// R3: decisions take one round trip, so that is what has to fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_whose_round_trip_is_most_of_the_timeout_is_used() {
    // A call behind another one in the proxy takes three times the delay.
    let (timeout, delay) = ("3200ms", Duration::from_millis(900));
    let (_redis, proxy, sidecar) = sidecar_behind_a_proxy(timeout).await;
    proxy.set(Mode::Slow(delay));
    let again = Sidecar::alone(&policy(proxy.url(), timeout, PLENTY)).await;
    wait_until_back(&again, "k").await;
    for sidecar in [&sidecar, &again] {
        let before = failures(sidecar, "timeout").await;
        assert_eq!(decide(sidecar, "k").await, "admitted");
        assert_eq!(failures(sidecar, "timeout").await, before);
    }
}

/// C15: a large request had one deadline for all of its calls. It was *unavailable* as a whole though most of it was taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_may_take_as_many_calls_as_it_needs() {
    let (timeout, delay) = ("3200ms", Duration::from_millis(500));
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let window = |hours| format!("{{ quota: {PLENTY}, per: {hours}h }}");
    let windows: Vec<_> = (1..=8).map(window).collect();
    let fields = format!("algorithm: fixed_window, windows: [{}]", windows.join(", "));
    let policy = Policy::on(proxy.url()).timeout(timeout);
    let sidecar = Sidecar::alone(&policy.limit("per-key", &fields).text()).await;
    wait_until_back(&sidecar, "k").await;
    proxy.set(Mode::Slow(delay));
    // Eight calls of a second each.
    let decision = |n: u32| json!({ "checks": [{ "limit": "per-key", "key": n.to_string() }] });
    let decisions: Vec<_> = (0..512).map(decision).collect();
    let answer = sidecar.answer(json!(decisions)).await;
    let verdicts = answer["verdicts"].as_array().unwrap();
    let admitted = verdicts.iter().filter(|one| one["outcome"] == "admitted");
    assert_eq!(admitted.count(), 512, "{}", sidecar.log());
}

/// C16: each was replaced at once, so /readyz said that the store answers, and the metric that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_connections_are_cut_all_the_time_is_told_to_be_away() {
    let (_redis, proxy, sidecar) = sidecar_behind_a_proxy(TIMEOUT).await;
    let tells = async |up: f64, text: &str| {
        let ready = sidecar.readyz().await;
        sidecar.metric("sluicegate_store_up").await == up && ready.contains(text)
    };
    let cuts = async {
        loop {
            proxy.set(Mode::Refuse);
            tokio::time::sleep(Duration::from_millis(2)).await;
            proxy.set(Mode::Pass);
            tokio::time::sleep(Duration::from_millis(98)).await;
        }
    };
    let told = eventually("for a while both say so", async || {
        for _ in 0..40 {
            if !tells(0.0, "the store has not answered").await {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        true
    });
    tokio::select! {
        () = cuts => {}
        () = told => {}
    }
    proxy.set(Mode::Pass);
    eventually("both say that it is back", async || {
        tells(1.0, "the store answers").await
    })
    .await;
}

/// R3: "no answer on a new connection" was said of a Redis that answers, ten times a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_too_slow_is_kept_and_the_remedy_is_named() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    proxy.set(Mode::Slow(Duration::from_millis(150)));
    let sidecar = sidecar(proxy.url(), TIMEOUT, PLENTY).await;
    stays_unavailable(&sidecar, "k").await;
    logs(&sidecar, "set `store_timeout` to at least").await;
    assert_eq!(proxy.accepted(), 2, "both connections are kept");
    proxy.set(Mode::Pass);
    is_soon_back(&sidecar, "k", "Redis slow").await;
    assert_eq!(proxy.accepted(), 2);
}

/// A sidecar that uses a Redis through a proxy.
pub async fn sidecar_behind_a_proxy(timeout: &str) -> (Redis, Proxy, Sidecar) {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let sidecar = sidecar(proxy.url(), timeout, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    (redis, proxy, sidecar)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_replaced() {
    let (_redis, proxy, sidecar) = sidecar_behind_a_proxy(TIMEOUT).await;
    let before = proxy.accepted();
    proxy.set(Mode::Swallow);
    stays_unavailable(&sidecar, "k").await;
    eventually("another connection is tried", async || {
        proxy.accepted() > before + 1
    })
    .await;
    // A connection that has swallowed bytes stays silent: only a new one can answer.
    proxy.set(Mode::Pass);
    is_soon_back(&sidecar, "k", "peer silent, old connections lost").await;
}

/// The sidecar voided its own cached denials when the store's clock was set back, and filters kept theirs: a key was
/// locked for a window and `denial_ttl`, as the campaign of tests/chaos saw. A filter voids them with the first answer
/// of another epoch.
#[tokio::test]
async fn a_clock_that_is_set_back_ends_the_cached_denials_of_filters_too() {
    let folder = tempfile::tempdir().unwrap();
    let clock = SteppedClock::build(folder.path());
    let redis = Redis::start_in(&[], &clock.environment()).await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    let epoch = async || {
        let check = json!({ "limit": "per-key", "key": "k" });
        let answer = sidecar.answer(json!([{ "checks": [check] }])).await;
        answer["epoch"].as_u64().unwrap()
    };
    wait_until_back(&sidecar, "k").await;
    let before = epoch().await;
    assert_eq!(epoch().await, before);
    clock.set_ahead_us(-60_000_000);
    eventually("the next answers are of another epoch", async || {
        epoch().await == before + 1
    })
    .await;
    // Once for each step, and the policy is the same.
    assert_eq!(epoch().await, before + 1);
    assert_eq!(sidecar.metric("sluicegate_policy_epoch").await, 1.0);
}
