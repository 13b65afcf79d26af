//! Decisions and outages seen from a caller of the sidecar, with the limit `per-key` that is *unavailable* without its store.

use std::time::{Duration, Instant};

use crate::client::post;
use crate::sidecar::Sidecar;
use serde_json::{Value, json};

/// The sidecar uses a store again within this time after it is back: the promised second, and one for a machine that
/// stalls.
pub const BACK_WITHIN: Duration = Duration::from_secs(2);

/// A policy with this `store` (YAML: a string or a mapping) and a limit `per-key`, which is *unavailable* without the store.
pub fn policy(store: &str, timeout: &str, quota: u64) -> String {
    format!(
        "store: {store}\nstore_timeout: {timeout}\nlimits:\n  per-key: {{ algorithm: sliding_log, when_store_is_down: deny, windows: [{{ quota: {quota}, per: 1h }}] }}\n"
    )
}

/// One decision; its outcome.
pub async fn decide(sidecar: &Sidecar, key: &str) -> String {
    verdict(sidecar, key).await["outcome"]
        .as_str()
        .expect("an outcome")
        .to_owned()
}

/// One decision; its verdict.
pub async fn verdict(sidecar: &Sidecar, key: &str) -> Value {
    let body = json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": key }] }] });
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let (_, answer) = post(&url, body.to_string()).await;
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["verdicts"][0].take()
}

/// Asks until there is a verdict; returns how long that took.
pub async fn wait_until_back(sidecar: &Sidecar, key: &str) -> Duration {
    let since = Instant::now();
    while decide(sidecar, key).await == "unavailable" {
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "never back: {}",
            sidecar.log()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// Asks repeatedly for this time; returns the outcomes in order.
pub async fn decide_for(sidecar: &Sidecar, key: &str, time: Duration) -> Vec<String> {
    let since = Instant::now();
    let mut outcomes = Vec::new();
    while since.elapsed() < time {
        outcomes.push(decide(sidecar, key).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outcomes
}

/// When a test gives up that waits for an admission.
pub const LOCKED_AT_MOST: Duration = Duration::from_secs(30);

/// Failed calls of a kind.
pub async fn failures(sidecar: &Sidecar, kind: &str) -> f64 {
    let name = format!("sluicegate_store_errors_total{{kind=\"{kind}\"}}");
    sidecar.metric(&name).await
}

/// Prints a measured time, for the documents.
pub fn print_measured(what: &str, time: Duration) {
    println!("measured: {what}: back after {time:?}");
}

/// The ACL command in docs/redis.md.
pub fn documented_acl() -> String {
    let page = include_str!("../../docs/redis.md");
    let line = page
        .lines()
        .find(|line| line.starts_with("ACL SETUSER sluicegate "));
    line.expect("the ACL in docs/redis.md")
        .replace("PASSWORD", "secret")
}
