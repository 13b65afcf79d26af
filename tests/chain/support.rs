//! Helpers for several modules.

use serde_json::Value;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

pub use sluicegate_tests::policy::{generous, per_key, plugin, policy, question};

/// Test machines may stall for tens of milliseconds, which must not count as an outage.
pub const PATIENT: &str = "store_timeout: 2s";

/// A connection on which this was sent.
pub async fn sent(port: u16, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
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
        let envoy = Envoy::asking(sidecar.port)
            .plugin(plugin)
            .start(folder.path())
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
