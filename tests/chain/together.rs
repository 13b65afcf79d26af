//! One callout for all waiting requests, cached denials, and clients that come and go meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;

use super::support::{Chain, decided, per_key, plugin, policy, sent};

/// Sends `each` requests on each of this many connections; returns the number of answers with 200 and with 429.
async fn storm(envoy: &Envoy, connections: usize, each: usize, key: &str) -> (u64, u64) {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut tasks = Vec::new();
    for _ in 0..connections {
        let (url, client, counts, key) = (
            envoy.url("/"),
            client(),
            Arc::clone(&counts),
            key.to_owned(),
        );
        tasks.push(tokio::spawn(async move {
            for _ in 0..each {
                let index = match status_for(&client, &url, &key).await.unwrap() {
                    200 => 0,
                    429 => 1,
                    other => panic!("status {other}"),
                };
                counts[index].fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    (
        counts[0].load(Ordering::Relaxed),
        counts[1].load(Ordering::Relaxed),
    )
}

async fn counted(chain: &Chain, verdict: &str, sources: &[&str]) -> u64 {
    let mut sum = 0;
    for source in sources {
        sum += decided(&chain.sidecar, "per-key", source, verdict).await;
    }
    sum
}

/// Callouts under way.
const ASKING: &str = "cluster.sluicegate.upstream_rq_active";

const SOURCES: [&str; 3] = ["store", "certificate", "filter"];

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_every_429_that_clients_saw_whatever_its_source() {
    const LIMIT: u64 = 50;
    let chain = Chain::of("sliding_log", LIMIT, "1h").await;
    let (admitted, denied) = storm(&chain.envoy, 16, 60, "alice").await;
    assert_eq!((admitted, denied), (LIMIT, 16 * 60 - LIMIT));
    // The filter reports its cached denials within a second, even without another request.
    eventually("every 429 is counted", async || {
        counted(&chain, "denied", &SOURCES).await == denied
    })
    .await;
    // A cache only denies.
    assert_eq!(counted(&chain, "admitted", &["store"]).await, admitted);
    let asked = counted(&chain, "denied", &["store", "certificate"]).await;
    assert!(
        asked < denied / 4,
        "of {denied} denials {asked} were asked for"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_counted_once_when_its_client_hangs_up() {
    let chain = Chain::of("sliding_log", 1, "1h").await;
    let (_, mut denied) = storm(&chain.envoy, 1, 2, "alice").await;
    // Ten times, since the report may already have left with the filter's tick.
    for hangup in 0..10 {
        denied += storm(&chain.envoy, 1, 20, "alice").await.1;
        chain.redis.pause();
        let request = format!("GET / HTTP/1.1\r\nhost: h\r\nx-api-key: bob-{hangup}\r\n\r\n");
        let bob = sent(chain.envoy.port, &request).await;
        eventually("bob's question is under way", async || {
            chain.envoy.stat(ASKING).await > 0
        })
        .await;
        drop(bob);
        eventually("bob is gone", async || chain.envoy.active().await == 0).await;
        chain.redis.resume();
    }
    eventually("every 429 is counted", async || {
        counted(&chain, "denied", &SOURCES).await >= denied
    })
    .await;
    // A duplicate report would arrive before that of a denial which the filter gives by itself now.
    let before = counted(&chain, "denied", &["filter"]).await;
    while counted(&chain, "denied", &["filter"]).await == before {
        denied += storm(&chain.envoy, 1, 1, "alice").await.1;
    }
    eventually("every 429 is counted", async || {
        counted(&chain, "denied", &SOURCES).await >= denied
    })
    .await;
    assert_eq!(counted(&chain, "denied", &SOURCES).await, denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_share_a_callout() {
    let chain = Chain::of("sliding_log", 1_000_000, "1h").await;
    let (admitted, _) = storm(&chain.envoy, 64, 40, "alice").await;
    assert_eq!(admitted, 64 * 40);
    let callouts = chain
        .envoy
        .stat("cluster.sluicegate.upstream_rq_total")
        .await;
    assert!(
        callouts * 2 < admitted,
        "{callouts} callouts for {admitted} requests"
    );
    let calls = chain
        .sidecar
        .metric("sluicegate_store_batch_decisions_count")
        .await as u64;
    assert!(
        calls <= callouts,
        "{calls} calls to Redis for {callouts} callouts"
    );
}

/// How long the slowest of forty requests waits that get no verdict.
async fn slowest_of_forty(chain: &Chain) -> Duration {
    let mut tasks = Vec::new();
    for n in 0..40 {
        let (url, client) = (chain.envoy.url("/"), client());
        tasks.push(tokio::spawn(async move {
            // Spread over the duration of a callout, so that some requests find a new one and some an old one.
            tokio::time::sleep(Duration::from_millis(n * 15)).await;
            let started = Instant::now();
            assert_eq!(status_for(&client, &url, "alice").await, Some(503));
            started.elapsed()
        }));
    }
    let mut slowest = Duration::ZERO;
    for task in tasks {
        slowest = slowest.max(task.await.unwrap());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sidecar_delays_no_request_past_its_deadline() {
    let mut slow = plugin(per_key("deny"));
    slow["sidecar"]["timeout"] = "500ms".into();
    let policy = |url: &str| policy(url, "sliding_log", 1_000_000, "1h");
    let chain = Chain::start(policy, slow).await;
    assert_eq!(chain.status("/", "alice").await, 200);
    chain.sidecar.signal("STOP");
    // The deadline under test, and an allowance for a machine that stalls: which it does not in each of several rounds.
    for round in 0.. {
        let slowest = slowest_of_forty(&chain).await;
        if slowest < Duration::from_millis(500 + 400) {
            break;
        }
        assert!(round < 5, "{slowest:?}");
    }
    chain.sidecar.signal("CONT");
    eventually("verdicts come again", async || {
        chain.status("/", "alice").await == 200
    })
    .await;
}
