//! One callout for all waiting requests, cached denials, and clients that come and go meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support::{Chain, per_key, plugin, policy};

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
    let mut sum = 0.0;
    for source in sources {
        let labels = format!("limit=\"per-key\",source=\"{source}\",verdict=\"{verdict}\"");
        sum += chain
            .sidecar
            .metric(&format!("sluicegate_decisions_total{{{labels}}}"))
            .await;
    }
    sum as u64
}

const SOURCES: [&str; 3] = ["store", "certificate", "filter"];

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_every_429_that_clients_saw_whatever_its_source() {
    const LIMIT: u64 = 50;
    let chain = Chain::start(
        |url| policy(url, "sliding_log", LIMIT, "1h"),
        plugin(per_key("deny")),
    )
    .await;
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
    let chain = Chain::start(
        |url| policy(url, "sliding_log", 1, "1h"),
        plugin(per_key("deny")),
    )
    .await;
    let (_, mut denied) = storm(&chain.envoy, 1, 2, "alice").await;
    // Ten times, since the report may already have left with the filter's tick.
    for hangup in 0..10 {
        denied += storm(&chain.envoy, 1, 20, "alice").await.1;
        chain.redis.pause();
        let mut bob = TcpStream::connect(("127.0.0.1", chain.envoy.port))
            .await
            .unwrap();
        let request = format!("GET / HTTP/1.1\r\nhost: h\r\nx-api-key: bob-{hangup}\r\n\r\n");
        bob.write_all(request.as_bytes()).await.unwrap();
        eventually("bob's question is under way", async || {
            let active = chain
                .envoy
                .stat("cluster.sluicegate.upstream_rq_active")
                .await;
            active > 0
        })
        .await;
        drop(bob);
        eventually("bob is gone", async || {
            let active = chain.envoy.stat("http.ingress.downstream_rq_active").await;
            active == 0
        })
        .await;
        chain.redis.resume();
    }
    eventually("every 429 is counted", async || {
        counted(&chain, "denied", &SOURCES).await >= denied
    })
    .await;
    // A duplicate report would arrive within two of the filter's ticks.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(counted(&chain, "denied", &SOURCES).await, denied);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_requests_share_a_callout() {
    let chain = Chain::start(
        |url| policy(url, "sliding_log", 1_000_000, "1h"),
        plugin(per_key("deny")),
    )
    .await;
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

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_while_they_wait_leave_nothing_behind() {
    let chain = Chain::start(
        |url| policy(url, "sliding_log", 1_000_000, "1h"),
        plugin(per_key("deny")),
    )
    .await;
    let port = chain.envoy.port;
    let mut tasks = Vec::new();
    for task in 0..20_u64 {
        tasks.push(tokio::spawn(async move {
            for n in 0..150_u64 {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
                    continue;
                };
                let request = format!(
                    "GET /{n} HTTP/1.1\r\nhost: a\r\nx-api-key: k{}\r\n\r\n",
                    n % 7
                );
                stream.write_all(request.as_bytes()).await.unwrap();
                // At once, or after a moment in which its callout may be queued, in flight, or answered.
                tokio::time::sleep(Duration::from_micros((task * 150 + n) * 7_919 % 900)).await;
            }
        }));
    }
    let (admitted, _) = storm(&chain.envoy, 8, 100, "alice").await;
    assert_eq!(admitted, 800, "those who stay are served meanwhile");
    for task in tasks {
        task.await.unwrap();
    }
    eventually("no stream is left", async || {
        chain.envoy.stat("http.ingress.downstream_rq_active").await == 0
            && chain
                .envoy
                .stat("cluster.sluicegate.upstream_rq_active")
                .await
                == 0
    })
    .await;
    assert_eq!(chain.envoy.vm_deaths().await, 0, "{}", chain.envoy.log());
    assert_eq!(chain.status("/", "alice").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sidecar_delays_no_request_past_its_deadline() {
    let mut slow = plugin(per_key("deny"));
    slow["sidecar"]["timeout"] = "500ms".into();
    let chain = Chain::start(|url| policy(url, "sliding_log", 1_000_000, "1h"), slow).await;
    assert_eq!(chain.status("/", "alice").await, 200);
    chain.sidecar.signal("STOP");
    let mut tasks = Vec::new();
    for n in 0..40 {
        let (url, client) = (chain.envoy.url("/"), client());
        tasks.push(tokio::spawn(async move {
            // Spread over the duration of a callout, so that some requests find a new one and some an old one.
            tokio::time::sleep(Duration::from_millis(n * 15)).await;
            let started = std::time::Instant::now();
            let status = client
                .get(&url)
                .header("x-api-key", "alice")
                .send()
                .await
                .unwrap()
                .status();
            (status.as_u16(), started.elapsed())
        }));
    }
    for task in tasks {
        let (status, took) = task.await.unwrap();
        assert_eq!(status, 503);
        // The deadline under test, and an allowance for a machine that stalls.
        assert!(took < Duration::from_millis(500 + 400), "{took:?}");
    }
    chain.sidecar.signal("CONT");
    eventually("verdicts come again", async || {
        chain.status("/", "alice").await == 200
    })
    .await;
}
