//! F1: thousands of requests wait while the sidecar stalls. None hangs or is disconnected, each gets its proper answer by
//! its deadline, and the VM survives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::envoy::{Envoy, PLUGIN, at};
use sluicegate_tests::listener::{from_file, write_listener};
use sluicegate_tests::process::eventually;
use sluicegate_tests::wire::{self, Exchange, Wire};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::access_log::access_log;
use super::support::{envoy, filters, many_files, per_key, plugin};

/// Concurrently waiting requests: close to the capacity of the filter's queue.
const WAITING: usize = 4_000;
const TIMEOUT: Duration = Duration::from_millis(700);
/// How late the filter itself may be: its timer fires every 25 ms.
const LATE: Duration = Duration::from_millis(50);
/// Allowance for a machine with two busy cores to read and answer thousands of requests. Requests that hang take longer.
const STALL: Duration = Duration::from_secs(25);

/// A fake sidecar that accepts connections and never answers. Those that Envoy closes are closed: it opens one for each callout
/// that is late, and this process has no files for all of them.
pub async fn silent() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
        }
    });
    port
}

fn patient(when_unavailable: &str) -> Value {
    let mut plugin = plugin(per_key(when_unavailable));
    plugin["sidecar"]["timeout"] = json!(format!("{}ms", TIMEOUT.as_millis()));
    plugin
}

/// The addresses behind Envoy.
const UPSTREAMS: &str = "/static_resources/clusters/0/load_assignment/endpoints";

async fn behind_a_silent_sidecar(when_unavailable: &str, patch: impl FnOnce(&mut Value)) -> Envoy {
    let (sidecar, upstream) = (silent().await, wire::upstream().await);
    let planned = Envoy::asking(sidecar).upstream(upstream).patch(patch);
    let planned = planned.plugin(patient(when_unavailable));
    planned.alone().await
}

/// Sends [`WAITING`] requests at the same time, each on its own connection, and calls `meanwhile` when they wait. Returns
/// each one's answer, and when it came.
async fn all_at_once(
    envoy: &Envoy,
    meanwhile: impl AsyncFnOnce(),
) -> Vec<(Option<Exchange>, Duration)> {
    let _files = many_files().await;
    let barrier = Arc::new(Barrier::new(WAITING));
    let mut clients = Vec::new();
    for n in 0..WAITING {
        let (barrier, port) = (Arc::clone(&barrier), envoy.port);
        clients.push(tokio::spawn(async move {
            let mut wire = Wire::new(port);
            wire.connect().await;
            barrier.wait().await;
            let request = format!("GET / HTTP/1.1\r\nhost: h\r\nx-api-key: k{n}\r\n\r\n");
            let started = Instant::now();
            let answer = wire.once(request.as_bytes()).await;
            (answer, started.elapsed())
        }));
    }
    eventually("they wait", async || {
        envoy.active().await >= WAITING as u64 / 2
    })
    .await;
    meanwhile().await;
    let mut answers = Vec::new();
    for client in clients {
        answers.push(client.await.unwrap());
    }
    answers
}

/// The time from a request's first byte to its answer's last, by Envoy's access log: without the time until it is read.
fn slowest_by_envoy(envoy: &Envoy) -> u64 {
    let lines = access_log(envoy);
    let times = lines
        .iter()
        .filter_map(|line| line["milliseconds"].as_u64());
    times.max().unwrap_or(0)
}

/// Asserts that each request got this answer by its deadline, and that the worker is still healthy.
async fn each_got(
    envoy: &Envoy,
    answers: &[(Option<Exchange>, Duration)],
    status: u16,
    body: &str,
) {
    let slowest = answers.iter().map(|(_, took)| *took).max().unwrap();
    println!(
        "{} answers, the slowest after {slowest:?}, by Envoy's own clock after {} ms",
        answers.len(),
        slowest_by_envoy(envoy)
    );
    for (answer, _) in answers {
        let answer = answer.as_ref().expect("no connection is broken");
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(body), "{}", answer.body);
    }
    assert!(slowest < TIMEOUT + LATE + STALL, "{slowest:?}");
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_requests_waiting_for_a_silent_sidecar_are_denied_in_time() {
    let envoy = behind_a_silent_sidecar("deny", |_| {}).await;
    let answers = all_at_once(&envoy, async || {}).await;
    each_got(&envoy, &answers, 503, "rate limiter did not answer").await;
}

/// Each filter of a chain adds to the stack depth at which Envoy continues a request.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_that_one_filter_or_three_let_through_to_no_upstream_at_all_are_told_so() {
    for more in [&[][..], &["second", "third"]] {
        let envoy = behind_a_silent_sidecar("allow", |config| {
            *at(config, UPSTREAMS) = json!([]);
            for name in more {
                let filters = filters(config);
                let mut filter = filters[0].clone();
                filter["name"] = json!(name);
                filter["typed_config"]["config"]["name"] = json!(name);
                filters.insert(1, filter);
            }
        })
        .await;
        let answers = all_at_once(&envoy, async || {}).await;
        each_got(&envoy, &answers, 503, "no healthy upstream").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_envoy_answers_thousands_of_waiting_requests() {
    let envoy = behind_a_silent_sidecar("deny", |_| {}).await;
    let drain = envoy.admin("/drain_listeners?graceful");
    let answers = all_at_once(&envoy, async || {
        assert_eq!(post(&drain, "").await.0, 200);
    })
    .await;
    each_got(&envoy, &answers, 503, "rate limiter did not answer").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_waiting_requests_are_answered_although_their_configuration_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut listener = Value::Null;
    let envoy = Envoy::asking(silent().await)
        .upstream(wire::upstream().await)
        .plugin(patient("deny"))
        .patch(|config| listener = from_file(config, folder.path()))
        .alone()
        .await;
    envoy.listens().await;
    // Envoy closes the old listener's connections after some seconds: see `--drain-time-s` in `envoy.rs`.
    let answers = all_at_once(&envoy, async || {
        at(&mut listener, PLUGIN)["pepper"] = json!("another");
        write_listener(folder.path(), &listener);
    })
    .await;
    each_got(&envoy, &answers, 503, "rate limiter did not answer").await;
}

/// F9: the first callout is lost and no further request arrives: the request behind it still gets its verdict.
#[tokio::test]
async fn a_request_behind_a_lost_callout_gets_its_verdict() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let is_lost = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&is_lost);
    tokio::spawn(async move {
        let answer = r#"{"epoch":1,"verdicts":[{"outcome":"admitted","check":0,"limit":"l","quota":9,"window_ms":1,"remaining":8,"reset_ms":1,"retry_after_ms":0}]}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        let answer = head + answer;
        // Each by itself: Envoy's main thread announces its filter on a connection of its own.
        while let Ok((mut stream, _)) = listener.accept().await {
            let (lost, answer) = (Arc::clone(&lost), answer.clone());
            tokio::spawn(async move {
                while wire::read_question(&mut stream).await {
                    if lost.swap(true, Ordering::Relaxed) {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                }
            });
        }
    });
    // The second asks anew after a quarter of this, and a busy machine has the rest to answer it.
    let mut patient = patient("deny");
    patient["sidecar"]["timeout"] = json!("4s");
    let envoy = envoy(port, patient).await;
    let request = b"GET / HTTP/1.1\r\nhost: h\r\nx-api-key: k\r\n\r\n";
    let ask = |mut wire: Wire| async move { wire.once(request).await.unwrap().status };
    let first = tokio::spawn(ask(Wire::new(envoy.port)));
    eventually("the first callout is lost", async || {
        is_lost.load(Ordering::Relaxed)
    })
    .await;
    let second = tokio::spawn(ask(Wire::new(envoy.port)));
    assert_eq!(second.await.unwrap(), 200);
    assert_eq!(first.await.unwrap(), 503);
}
