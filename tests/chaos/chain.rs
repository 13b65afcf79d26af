//! The whole chain, each part real and on its own port: Envoy with the filter, a sidecar, and one of several stores.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::clock::SteppedClock;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::listener::from_file;
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::Proxy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sentinel::Sentinels;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::wire;
use tempfile::TempDir;

use crate::rules::{plugin, policy};

/// Where the counts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One Redis, behind a proxy.
    Redis,
    /// The same, with a clock that the test steps.
    SteppedClock,
    /// A primary and a replica, watched by three sentinels.
    Sentinel,
    /// A Redis Cluster of three nodes.
    Cluster,
}

/// The parts of a store; those that a place lacks are `None`.
#[derive(Debug, Default)]
pub struct Store {
    redis: Option<Redis>,
    proxy: Option<Proxy>,
    clock: Option<SteppedClock>,
    sentinels: Option<Sentinels>,
    cluster: Option<Cluster>,
}

/// A running chain.
pub struct Chain {
    pub sidecar: Sidecar,
    pub envoy: Envoy,
    /// Envoy's listener, which Envoy reads from a file in its own folder.
    pub listener: Value,
    own: PathBuf,
    store: Store,
    upstream: u16,
    folder: TempDir,
}

impl Chain {
    pub async fn start(place: Place) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (store, url) = Store::start(place, folder.path()).await;
        let sidecar = Sidecar::start(&policy(&url), folder.path()).await;
        let upstream = wire::upstream().await;
        let (envoy, listener, own) = envoy(&folder, sidecar.port, upstream).await;
        eventually("the sidecar knows of itself", async || {
            sidecar.metric("sluicegate_sidecars").await == 1.0
        })
        .await;
        Self {
            sidecar,
            envoy,
            listener,
            own,
            store,
            upstream,
            folder,
        }
    }

    pub fn redis(&mut self) -> &mut Redis {
        self.store.redis.as_mut().expect("a place with one Redis")
    }

    pub fn proxy(&self) -> &Proxy {
        self.store.proxy.as_ref().expect("a place with a proxy")
    }

    pub fn clock(&self) -> &SteppedClock {
        self.store.clock.as_ref().expect("a place with this clock")
    }

    pub fn sentinels(&mut self) -> &mut Sentinels {
        self.store
            .sentinels
            .as_mut()
            .expect("a place with sentinels")
    }

    pub fn cluster(&mut self) -> &mut Cluster {
        self.store.cluster.as_mut().expect("a Cluster")
    }

    /// The folder with the file of Envoy's listener.
    pub fn listener_folder(&self) -> PathBuf {
        self.own.clone()
    }

    /// Starts another Envoy in front of the same sidecar and returns the one that it replaces.
    pub async fn replace_envoy(&mut self) -> Envoy {
        let (new, listener, own) = envoy(&self.folder, self.sidecar.port, self.upstream).await;
        (self.listener, self.own) = (listener, own);
        std::mem::replace(&mut self.envoy, new)
    }

    /// Whether the store decides, and has everything that was admitted without it.
    pub async fn is_settled(&self) -> bool {
        let metrics = self.sidecar.metrics().await;
        let of = |name| sluicegate_tests::sidecar::metric_in(&metrics, name);
        of("sluicegate_store_up") == 1.0 && of("sluicegate_unwritten_buckets") == 0.0
    }

    /// What is left of a limit, by a decision that only looks; `None` without a verdict.
    pub async fn look(&self, decision: &Value) -> Option<u64> {
        let url = format!("http://127.0.0.1:{}/v1/decide", self.sidecar.port);
        let (_, body) = post(&url, json!({ "decisions": [decision] }).to_string()).await;
        let answer: Value = serde_json::from_str(&body).ok()?;
        answer["verdicts"][0]["remaining"].as_u64()
    }

    /// Stops the sidecar for this long.
    pub async fn pause_sidecar(&self, length: Duration) {
        self.sidecar.signal("STOP");
        tokio::time::sleep(length).await;
        self.sidecar.signal("CONT");
    }
}

impl Store {
    /// Starts it; returns it with the `store` of a policy that uses it.
    async fn start(place: Place, folder: &std::path::Path) -> (Self, String) {
        let mut store = Self::default();
        let url = match place {
            Place::Redis | Place::SteppedClock => {
                let redis = if place == Place::SteppedClock {
                    let clock = store.clock.insert(SteppedClock::build(folder));
                    Redis::start_in(&[], &clock.environment()).await
                } else {
                    // With commands that slow its start, which are hidden otherwise.
                    Redis::start_with(&["--enable-debug-command", "yes"]).await
                };
                let proxy = store.proxy.insert(Proxy::start(redis.port()).await);
                store.redis = Some(redis);
                proxy.url()
            }
            Place::Sentinel => {
                let sentinels = Sentinels::start(folder).await;
                store.sentinels.insert(sentinels).url()
            }
            Place::Cluster => store.cluster.insert(Cluster::start().await).url(),
        };
        (store, url)
    }
}

async fn envoy(folder: &TempDir, sidecar: u16, upstream: u16) -> (Envoy, Value, PathBuf) {
    let mut listener = Value::Null;
    // Each Envoy watches a file of its own.
    let own = tempfile::tempdir_in(folder.path()).unwrap().keep();
    let envoy = Envoy::start_with(&own, sidecar, upstream, Some(plugin()), |config| {
        listener = from_file(config, &own);
    })
    .await;
    envoy.listens().await;
    (envoy, listener, own)
}

/// Runs a command of this machine.
pub fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{program} {arguments:?}"
    );
}
