//! `make demo`: upstream, sidecar and Envoy on free ports, traffic from two clients, and a report.

use std::time::Duration;

use reqwest::Response;
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;

/// Requests that the clients send, one after the other.
const ALICE: usize = 8;
const BOB: usize = 3;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy =
        std::fs::read_to_string(repository("envoy/policy.yaml")).expect("envoy/policy.yaml");
    let redis = std::env::var("REDIS_URL")
        .ok()
        .filter(|url| !url.is_empty());
    let store = redis.as_ref().map_or(
        "embedded (set REDIS_URL to share limits through Redis)",
        |_| "Redis at REDIS_URL",
    );
    println!("demo: starting an upstream, a sidecar and Envoy; store: {store}");
    let sidecar = Sidecar::with(&policy)
        .store(redis.as_deref())
        .start(folder.path())
        .await;
    let upstream = upstream::start().await;
    let envoy = Envoy::asking(sidecar.port)
        .upstream(upstream)
        .start(folder.path())
        .await;

    println!("\nThe policy (envoy/policy.yaml):\n");
    for line in policy
        .lines()
        .skip_while(|line| !line.starts_with("limits:"))
    {
        println!("    {line}");
    }
    println!("\n  client   requests   200   429");
    let mut denied = None;
    for (name, requests) in [("alice", ALICE), ("bob", BOB)] {
        let mut counts = [0, 0];
        for _ in 0..requests {
            let answer = ask(&envoy, name).await;
            match answer.status().as_u16() {
                200 => counts[0] += 1,
                429 => {
                    counts[1] += 1;
                    denied = Some(answer);
                }
                other => panic!("{name} got {other}"),
            }
        }
        println!("  {name:8} {requests:8} {:5} {:5}", counts[0], counts[1]);
    }

    let denied = denied.expect("alice asked for more than her limit, so one request was denied");
    println!("\nThe headers of the last 429 for alice:\n");
    println!("    HTTP/1.1 {}", denied.status());
    for (name, value) in denied.headers() {
        println!("    {name}: {}", value.to_str().unwrap_or("(not text)"));
    }
    let retry_after = denied.headers()["retry-after"]
        .to_str()
        .ok()
        .and_then(|value| value.parse().ok());
    let retry_after = Duration::from_secs(retry_after.expect("retry-after in whole seconds"));
    println!("\n    {}", denied.text().await.expect("a text body"));
    tokio::time::sleep(retry_after).await;
    let retried = ask(&envoy, "alice").await.status();
    println!(
        "\nAlice waits the {} s that retry-after named, and asks again: {retried}",
        retry_after.as_secs()
    );
    assert_eq!(retried, 200, "a retry at the promised time is admitted");

    println!("\nWhat the sidecar has counted:\n");
    for line in sidecar
        .metrics()
        .await
        .lines()
        .filter(|line| line.starts_with("sluicegate_decisions_total") && !line.ends_with(" 0"))
    {
        println!("    {line}");
    }
    if std::env::var("KEEP").is_ok_and(|keep| keep == "1") {
        println!("\nRunning until Ctrl-C:\n");
        println!("    curl -i -H 'x-api-key: carol' {}", envoy.url("/"));
        println!("    live page    http://127.0.0.1:{}/", sidecar.admin_port);
        println!(
            "    metrics      http://127.0.0.1:{}/metrics",
            sidecar.admin_port
        );
        println!(
            "    ready?       http://127.0.0.1:{}/readyz",
            sidecar.admin_port
        );
        println!(
            "    Envoy's own  http://127.0.0.1:{}/stats/prometheus",
            envoy.admin_port
        );
        println!("    files, logs  {}", folder.path().display());
        let ended = tokio::signal::ctrl_c().await;
        ended.expect("a signal");
    } else {
        println!(
            "\nAll is ended. `make demo KEEP=1` leaves it running; envoy/envoy.yaml and envoy/policy.yaml are what ran."
        );
    }
}

async fn ask(envoy: &Envoy, key: &str) -> Response {
    client()
        .get(envoy.url("/"))
        .header("x-api-key", key)
        .send()
        .await
        .expect("an answer")
}
