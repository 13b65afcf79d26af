//! Helpers for several modules.

use serde_json::{Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Test machines may stall for tens of milliseconds, which must not count as an outage.
pub const PATIENT: &str = "store_timeout: 2s";

/// A policy in `store` with one limit `per-key` of one window.
pub fn policy(store: &str, algorithm: &str, quota: u64, per: &str) -> String {
    format!(
        "store: {store}\n{PATIENT}\nlimits:\n  per-key:\n    algorithm: {algorithm}\n    windows: [{{ quota: {quota}, per: {per} }}]\n"
    )
}

/// Limits that no test exhausts, in the sidecar's own memory.
pub fn generous() -> String {
    policy("memory", "fixed_window", 2_000_000_000, "1h")
}

/// A decision of the limit `per-key`.
pub fn question() -> String {
    json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": "k" }] }] }).to_string()
}

/// A connection on which this was sent.
pub async fn sent(port: u16, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// A plugin configuration with these rules, and a deadline that no stall exceeds.
pub fn plugin(rules: Value) -> Value {
    json!({ "sidecar": { "cluster": "sluicegate", "timeout": "3s" }, "rules": rules })
}

/// One rule for all requests: `per-key` by the header x-api-key.
pub fn per_key(when_unavailable: &str) -> Value {
    json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }] }],
        "when_unavailable": when_unavailable,
    }])
}

/// A whole chain, on its own ports and in its own folder.
pub struct Chain {
    pub redis: Redis,
    pub sidecar: Sidecar,
    pub envoy: Envoy,
    // Keeps their files for as long as they run.
    _folder: TempDir,
}

impl Chain {
    /// Starts it with a policy made from Redis's URL, and a plugin configuration.
    pub async fn start(policy: impl Fn(&str) -> String, plugin: Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start().await;
        let sidecar = Sidecar::start(&policy(&redis.url()), folder.path()).await;
        let envoy = Envoy::start(
            folder.path(),
            sidecar.port,
            upstream::start().await,
            Some(plugin),
        )
        .await;
        Self {
            redis,
            sidecar,
            envoy,
            _folder: folder,
        }
    }

    /// Requests a path with an API key.
    pub async fn get(&self, path: &str, key: &str) -> reqwest::Response {
        let client = sluicegate_tests::client::client();
        client
            .get(self.envoy.url(path))
            .header("x-api-key", key)
            .send()
            .await
            .unwrap()
    }

    /// The status alone.
    pub async fn status(&self, path: &str, key: &str) -> u16 {
        self.get(path, key).await.status().as_u16()
    }
}

/// A header of an answer as a number.
pub fn number(answer: &reqwest::Response, header: &str) -> u64 {
    let value = answer
        .headers()
        .get(header)
        .unwrap_or_else(|| panic!("no {header} in {answer:?}"));
    value.to_str().unwrap().parse().unwrap()
}
