//! Clients that make verdicts late, on purpose or not: bursts that keep Envoy's worker busy, a slow sidecar, streams that are
//! closed at once.

use std::time::Duration;

use axum::http::{HeaderMap, Request};
use futures_util::future::join_all;
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::sidecar::Sidecar;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::stall::silent;
use super::support::{Chain, Policy, decided, envoy, generous, per_key, plugin, policy};

/// Streams on each connection: what Envoy's documentation advises as the maximum.
const STREAMS: usize = 100;
const QUOTA: u64 = 10;
/// Most requests in one callout.
const MAX_BATCH: u64 = 256;

/// A plugin that lets requests without a verdict pass after this time.
fn within(timeout: &str) -> Value {
    let mut plugin = plugin(per_key("allow"));
    plugin["sidecar"]["timeout"] = json!(timeout);
    plugin
}

/// Sends so many requests over HTTP/2 at once, each connection with its own header fields; returns the statuses of those that
/// were answered.
pub async fn burst(port: u16, connections: usize, fields: impl Fn(usize) -> HeaderMap) -> Vec<u16> {
    // A set, which ends its tasks with it.
    let target = format!("http://host/{}", "v".repeat(1_500));
    let mut tasks: JoinSet<Vec<u16>> = JoinSet::new();
    for index in 0..connections {
        let fields = fields(index);
        let target = target.clone();
        tasks.spawn(async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (send, connection) = h2::client::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let mut send = send.ready().await.unwrap();
            let mut answers = Vec::new();
            for _ in 0..STREAMS {
                let mut request = Request::get(&target).body(()).unwrap();
                *request.headers_mut() = fields.clone();
                send = send.ready().await.unwrap();
                answers.push(send.send_request(request, true).unwrap().0);
            }
            let answers = join_all(answers).await.into_iter();
            answers.map(|one| one.unwrap().status().as_u16()).collect()
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

pub fn fields(key: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert("x-api-key", key.parse().unwrap());
    fields
}

fn count(statuses: &[u16], status: u16) -> u64 {
    statuses.iter().filter(|one| **one == status).count() as u64
}

/// W2: a burst that takes Envoy longer to read than a verdict may take: two seconds, by expressions that match none of its paths.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_keeps_the_worker_busy_is_not_admitted_for_want_of_verdicts() {
    let policy = |url: &str| policy(url, "sliding_log", QUOTA, "1h");
    let mut plugin = within("2s");
    let rules = plugin["rules"].as_array_mut().unwrap();
    for n in 0..12 {
        let mut rule = rules[0].clone();
        rule["name"] = json!(format!("other-{n}"));
        rule["match"] = json!({ "path_regex": format!("/(v|w)*{n}") });
        rules.push(rule);
    }
    let chain = Chain::start(policy, plugin).await;
    // One connection to the sidecar is there already, as in an Envoy that has been used.
    assert_eq!(chain.status("/", "warm").await, 200);
    let statuses = burst(chain.envoy.port, 6, |_| fields("alice")).await;
    let admitted = count(&statuses, 200);
    // A callout leaves Envoy when the worker has read what came in: where that takes longer than the timeout, as on a busy
    // machine, the first batch has no verdict. Whoever waits behind it is denied by what the next one learns.
    assert!(admitted <= QUOTA + MAX_BATCH, "{admitted} of {QUOTA}");
    assert_eq!(admitted + count(&statuses, 429), statuses.len() as u64);
    chain.envoy.is_well().await;
}

/// W2: a burst that would fill the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_one_key_fills_no_queue_and_admits_no_more_than_the_quota() {
    let policy = |url: &str| {
        let policy = Policy::on(url).timeout("8s");
        policy.window("per-key", "sliding_log", QUOTA, "1h").text()
    };
    let chain = Chain::start(policy, within("10s")).await;
    chain.envoy.has_rules().await;
    chain.redis.pause();
    let port = chain.envoy.port;
    let statuses = tokio::spawn(burst(port, 60, |_| fields("alice")));
    eventually("one key's part of the queue is full", async || {
        chain.envoy.counted("error_full").await > 0
    })
    .await;
    chain.redis.resume();
    let statuses = statuses.await.unwrap();
    let admitted = count(&statuses, 200);
    assert!(admitted <= QUOTA, "{admitted} of {QUOTA}");
    let refused = count(&statuses, 429) + count(&statuses, 503);
    assert_eq!(admitted + refused, statuses.len() as u64);
    chain.envoy.is_well().await;
}

/// L3: it answers in time, so everybody is served, and each unit is taken for somebody.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_takes_nine_tenths_of_the_timeout_serves_everybody() {
    const CLIENTS: u64 = 16;
    const EACH: u64 = 2;
    let sidecar = Sidecar::alone(&generous()).await;
    let slow = Proxy::start(sidecar.port).await;
    slow.set(Mode::Slow(Duration::from_millis(3_600)));
    let mut rules = plugin(per_key("deny"));
    rules["sidecar"]["timeout"] = json!("8s");
    let envoy = envoy(slow.port, rules).await;
    let clients = (0..CLIENTS).map(|n| {
        let url = envoy.url("/");
        tokio::spawn(async move {
            // Not together, or they would share a callout.
            tokio::time::sleep(Duration::from_millis(100 * n)).await;
            let client = client();
            for _ in 0..EACH {
                let request = client.get(&url).header("x-api-key", format!("k{n}"));
                assert_eq!(request.send().await.unwrap().status(), 200);
            }
        })
    });
    for client in join_all(clients).await {
        client.unwrap();
    }
    let taken = decided(&sidecar, "per-key", "store", "admitted").await;
    assert_eq!(taken, CLIENTS * EACH);
}

/// L4: the next client waits for its verdict, although thousands came and went.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_were_closed_hold_no_place_in_the_queue() {
    let mut rules = plugin(per_key("deny"));
    rules["sidecar"]["timeout"] = json!("10s");
    let envoy = envoy(silent().await, rules).await;
    envoy.has_rules().await;
    let port = envoy.port;
    let others = tokio::spawn(async move { burst(port, 90, |n| fields(&format!("k{n}"))).await });
    eventually("the queue is full", async || {
        envoy.counted("error_full").await > 0
    })
    .await;
    others.abort();
    eventually("they are gone", async || envoy.active().await == 0).await;
    assert_eq!(envoy.status("/", "alice").await, 503);
    envoy.counts(&[("error_no_answer", 1)]).await;
}

/// L2: what a request that is held for ever ends by.
#[tokio::test]
async fn a_request_that_nobody_concludes_ends_by_the_connection_managers_deadline() {
    let mut rules = plugin(per_key("deny"));
    rules["sidecar"]["timeout"] = json!("10s");
    let envoy = Envoy::asking(silent().await).plugin(rules).patch(|config| {
        let manager = at(config, MANAGER);
        assert_eq!(manager["request_timeout"], "30s", "it is shipped with one");
        manager["request_timeout"] = json!("1s");
    });
    let envoy = envoy.alone().await;
    assert_eq!(envoy.status("/", "alice").await, 504);
    envoy.is_well().await;
}
