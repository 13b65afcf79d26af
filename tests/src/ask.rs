//! Decisions and outages seen from a caller of the sidecar, with the limit `per-key` that is *unavailable* without its store.

use std::fmt::Display;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::policy::Policy;
use crate::process::{POLL, eventually};
use crate::sidecar::Sidecar;

/// The sidecar uses a store again within this time after it is back. It promises about a second, which the tests print;
/// the rest is for a machine whose processors others keep busy.
const BACK_WITHIN: Duration = Duration::from_secs(15);

/// A quota that no loop uses up, however fast the machine is.
pub const PLENTY: u64 = 1_000_000_000;

/// How long a call may take where a test is not about it: longer than a machine stalls, and short enough to wait for.
pub const PATIENT: &str = "2s";

/// A policy with this `store` (YAML: a string or a mapping) and a limit `per-key`, which is *unavailable* without the store.
pub fn policy(store: impl Display, timeout: &str, quota: u64) -> String {
    let windows = format!("windows: [{{ quota: {quota}, per: 1h }}]");
    let limit = format!("algorithm: sliding_log, when_store_is_down: deny, {windows}");
    let policy = Policy::on(store).timeout(timeout);
    policy.limit("per-key", &limit).text()
}

/// A sidecar with that policy, in a folder of its own.
pub async fn sidecar(store: impl Display, timeout: &str, quota: u64) -> Sidecar {
    Sidecar::alone(&policy(store, timeout, quota)).await
}

/// One decision; its outcome.
pub async fn decide(sidecar: &Sidecar, key: &str) -> String {
    let verdict = verdict(sidecar, key).await;
    verdict["outcome"].as_str().expect("an outcome").to_owned()
}

/// One decision; its verdict.
pub async fn verdict(sidecar: &Sidecar, key: &str) -> Value {
    let decision = json!({ "checks": [{ "limit": "per-key", "key": key }] });
    sidecar.answer(json!([decision])).await["verdicts"][0].take()
}

/// Asks until there is a verdict; returns how long that took.
pub async fn wait_until_back(sidecar: &Sidecar, key: &str) -> Duration {
    let since = Instant::now();
    while decide(sidecar, key).await == "unavailable" {
        let log = || sidecar.log();
        assert!(since.elapsed().as_secs() < 30, "never back: {}", log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    since.elapsed()
}

/// Asks until there is a verdict, which comes soon after the store is back; prints the time for the documents.
pub async fn is_soon_back(sidecar: &Sidecar, key: &str, what: &str) {
    let time = wait_until_back(sidecar, key).await;
    println!("measured: {what}: back after {time:?}");
    assert!(time < BACK_WITHIN, "{what}: {time:?}: {}", sidecar.log());
}

/// Asks a hundred times, over two seconds or more; there is never a verdict.
pub async fn stays_unavailable(sidecar: &Sidecar, key: &str) {
    for _ in 0..100 {
        assert_eq!(decide(sidecar, key).await, "unavailable");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for a log line or anything else that a sidecar's log contains.
pub async fn logs(sidecar: &Sidecar, words: &str) {
    eventually(words, async || sidecar.log().contains(words)).await;
}

/// Failed calls of a kind.
pub async fn failures(sidecar: &Sidecar, kind: &str) -> f64 {
    let name = format!("sluicegate_store_errors_total{{kind=\"{kind}\"}}");
    sidecar.metric(&name).await
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
