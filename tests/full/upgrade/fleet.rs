//! One Envoy, one sidecar and one Redis, whose versions can be changed while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::{answers, client};
use sluicegate_tests::envoy::{Envoy, at};
use sluicegate_tests::listener::{from_file, replace_filter, set_filter};
use sluicegate_tests::policy::{pushed, with_rules};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::version::Version;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Quota of each limit, which no test waits for.
pub const QUOTA: u64 = 12;
const POLICY: &str = "
store_timeout: 2s
limits:
  log: { algorithm: sliding_log, windows: [{ quota: 12, per: 1h }] }
  window: { algorithm: sliding_window, windows: [{ quota: 12, per: 1h }] }
  fixed: { algorithm: fixed_window, windows: [{ quota: 12, per: 1h }] }
  bucket: { algorithm: token_bucket, windows: [{ quota: 12, per: 12h }] }
  everyone: { algorithm: fixed_window, windows: [{ quota: 1000000000, per: 1h }] }
";

/// The parts, each of a version.
pub struct Fleet {
    /// Ends with it.
    _redis: Redis,
    pub sidecar: Sidecar,
    pub envoy: Envoy,
    listener: Value,
    folder: TempDir,
}

impl Fleet {
    /// Starts it. The rules ask for the limit that the request's first path segment names, by the header x-api-key.
    pub async fn start(sidecar: Version, filter: Version, when_unavailable: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start().await;
        let limits = ["log", "window", "fixed", "bucket", "everyone"];
        let rules = limits.map(|limit| {
            json!({
                "name": limit,
                "match": { "path_prefix": format!("/{limit}") },
                "checks": [{ "limit": limit, "key": [{ "header": "x-api-key" }] }],
                "when_unavailable": when_unavailable,
            })
        });
        let policy = with_rules(&format!("store: {}{POLICY}", redis.url()), &json!(rules));
        let sidecar = Sidecar::with(&policy)
            .program(&sidecar.sidecar())
            .start(folder.path())
            .await;
        let mut listener = Value::Null;
        let envoy = Envoy::asking(sidecar.port)
            .plugin(pushed())
            .patch(|config| {
                set_filter(at(config, "/static_resources/listeners/0"), filter);
                listener = from_file(config, folder.path());
            })
            .start(folder.path())
            .await;
        let fleet = Self {
            _redis: redis,
            sidecar,
            envoy,
            listener,
            folder,
        };
        eventually("the listener of the file", async || {
            answers(&fleet.envoy.url("/")).await
        })
        .await;
        fleet
    }

    /// Replaces the sidecar; returns how long nobody listened.
    pub async fn replace_sidecar(&mut self, version: Version) -> Duration {
        self.sidecar.replace(&version.sidecar()).await
    }

    /// Replaces the filter.
    pub async fn replace_filter(&mut self, version: Version) {
        replace_filter(&self.envoy, self.folder.path(), &mut self.listener, version).await;
    }

    /// The status of a request for a limit.
    pub async fn status(&self, limit: &str, key: &str) -> u16 {
        let request = client().get(self.envoy.url(&format!("/{limit}")));
        request
            .header("x-api-key", key)
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    }

    /// Asks this often; each must be admitted.
    pub async fn admits(&self, limit: &str, times: u64) {
        for n in 0..times {
            assert_eq!(
                self.status(limit, "alice").await,
                200,
                "{limit}, request {n} of {times}"
            );
        }
    }

    /// Starts traffic for `everyone`, and counts its answers until it is stopped.
    pub fn traffic(&self) -> Traffic {
        let counts = Arc::new(Counts::default());
        let (url, shared) = (self.envoy.url("/everyone"), Arc::clone(&counts));
        let task = tokio::spawn(async move {
            let client = client();
            while !shared.stop.load(Ordering::Relaxed) {
                let answer = client.get(&url).header("x-api-key", "k").send().await;
                let count = match answer.map(|answer| answer.status().as_u16()) {
                    Ok(200) => &shared.admitted,
                    Ok(503) => &shared.unavailable,
                    // A connection of a replaced listener may be closed before it is used; Envoy answers nothing else.
                    Err(error) if error.is_request() => &shared.closed,
                    other => panic!("{other:?}"),
                };
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        Traffic { counts, task }
    }
}

/// Clients that go on while parts are replaced.
pub struct Traffic {
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    admitted: AtomicU64,
    unavailable: AtomicU64,
    closed: AtomicU64,
}

impl Traffic {
    /// How many got 200, got 503, and lost their connection so far.
    pub fn counts(&self) -> (u64, u64, u64) {
        let counts = &self.counts;
        let all = [&counts.admitted, &counts.unavailable, &counts.closed];
        all.map(|count| count.load(Ordering::Relaxed)).into()
    }

    /// Ends it; the same.
    pub async fn stop(mut self) -> (u64, u64, u64) {
        self.counts.stop.store(true, Ordering::Relaxed);
        (&mut self.task).await.unwrap();
        self.counts()
    }
}
