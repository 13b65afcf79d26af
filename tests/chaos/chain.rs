//! The whole chain, each part real and on its own port: Envoy with the filter, a sidecar, and one of several stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::clock::SteppedClock;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::link::Link;
use sluicegate_tests::listener::{from_file, replace_filter, replace_listener};
use sluicegate_tests::process::{POLL, eventually};
use sluicegate_tests::proxy::Proxy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sentinel::Sentinels;
use sluicegate_tests::sidecar::{Sidecar, metric_in};
use sluicegate_tests::version::Version;
use sluicegate_tests::wire;
use tempfile::TempDir;

use super::rules::{self, plugin, policy};

/// How long a sidecar serves after SIGTERM.
pub const DRAIN: Duration = Duration::from_secs(1);

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
    /// The same, with a replica of the node that has the limits for everyone.
    Replicated,
    /// One Redis, beyond a link of two hosts.
    Link,
    /// One Redis with two sidecars, each with an Envoy: one sidecar behind the proxy, the other without it.
    Pair,
}

/// The parts of a store; those that a place lacks are `None`.
#[derive(Debug, Default)]
pub struct Store {
    redis: Option<Redis>,
    proxy: Option<Proxy>,
    clock: Option<SteppedClock>,
    sentinels: Option<Sentinels>,
    cluster: Option<Cluster>,
    /// The number of the replica.
    replica: Option<usize>,
    link: Option<Link>,
}

/// A running chain.
pub struct Chain {
    pub sidecar: Sidecar,
    pub envoy: Envoy,
    /// A second sidecar and its Envoy.
    pub second: Option<(Sidecar, Envoy)>,
    /// The ports of its Envoys, for clients: a port changes when another Envoy takes over.
    pub targets: Vec<Arc<AtomicU16>>,
    /// Envoy's listener, which Envoy reads from a file in its own folder.
    pub listener: Value,
    own: PathBuf,
    store: Store,
    upstream: u16,
    folder: TempDir,
}

impl Chain {
    pub async fn start(place: Place) -> Self {
        Self::start_with(place, policy).await
    }

    /// Starts one with a policy, made from the store's URL, and a configuration of the filter.
    pub async fn start_with(place: Place, policy: fn(&str) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (store, url) = Store::start(place, folder.path()).await;
        let drain = ["--drain", &format!("{}s", DRAIN.as_secs())];
        let sidecar_on = async |url: &str| {
            let sidecar = Sidecar::with(&policy(url)).arguments(&drain);
            sidecar.start(folder.path()).await
        };
        let sidecar = sidecar_on(&url).await;
        let upstream = wire::upstream().await;
        let (envoy, listener, own) = envoy_of(&folder, sidecar.port, upstream).await;
        let mut second = None;
        if place == Place::Pair {
            let sidecar = sidecar_on(&store.redis.as_ref().expect("one Redis").url()).await;
            let (envoy, ..) = envoy_of(&folder, sidecar.port, upstream).await;
            second = Some((sidecar, envoy));
        }
        sidecar.knows_of(1 + u32::from(second.is_some())).await;
        let envoys = std::iter::once(&envoy).chain(second.iter().map(|(_, envoy)| envoy));
        let targets = envoys.map(|envoy| Arc::new(AtomicU16::new(envoy.port)));
        Self {
            targets: targets.collect(),
            sidecar,
            envoy,
            second,
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
        self.store.sentinels.as_mut().expect("sentinels")
    }

    pub fn cluster(&mut self) -> &mut Cluster {
        self.store.cluster.as_mut().expect("a Cluster")
    }

    pub fn link(&self) -> &Link {
        self.store.link.as_ref().expect("a place with a link")
    }

    /// The number of the Cluster's replica.
    pub fn replica(&self) -> usize {
        self.store.replica.expect("a Cluster with a replica")
    }

    fn envoys(&self) -> impl Iterator<Item = &Envoy> {
        let second = self.second.iter().map(|(_, envoy)| envoy);
        std::iter::once(&self.envoy).chain(second)
    }

    fn sidecars(&self) -> impl Iterator<Item = &Sidecar> {
        let second = self.second.iter().map(|(sidecar, _)| sidecar);
        std::iter::once(&self.sidecar).chain(second)
    }

    /// Starts another Envoy in front of the same sidecar, leads new requests to it, and returns the one that it replaces.
    pub async fn replace_envoy(&mut self) -> Envoy {
        let (port, upstream) = (self.sidecar.port, self.upstream);
        let new = envoy_of(&self.folder, port, upstream).await;
        let old = std::mem::replace(&mut self.envoy, new.0);
        (self.listener, self.own) = (new.1, new.2);
        for target in &self.targets {
            target.store(self.envoy.port, Ordering::Relaxed);
        }
        old
    }

    /// Gives Envoy the listener as it is now, and waits until it has it.
    pub async fn listener_replaced(&self) {
        replace_listener(&self.envoy, &self.own, &self.listener).await;
    }

    /// Replaces the sidecar, as an upgrade or a rollback does.
    pub async fn replace_sidecar(&mut self, version: Version) {
        self.sidecar.replace(&version.sidecar()).await;
    }

    /// Likewise, the filter.
    pub async fn replace_filter(&mut self, version: Version) {
        replace_filter(&self.envoy, &self.own, &mut self.listener, version).await;
    }

    /// Waits until no request is active.
    pub async fn quiet(&self) {
        for envoy in self.envoys() {
            eventually("no request is active", async || envoy.active().await == 0).await;
        }
    }

    /// How often VMs of the filter died.
    pub async fn vm_deaths(&self) -> u64 {
        let mut deaths = 0;
        for envoy in self.envoys() {
            deaths += envoy.vm_deaths().await;
        }
        deaths
    }

    /// Whether the store decides, and has everything that was admitted without it.
    async fn is_settled(&self) -> bool {
        for sidecar in self.sidecars() {
            let metrics = sidecar.metrics().await;
            let of = |name| metric_in(&metrics, name);
            if of("sluicegate_store_up") != 1.0 || of("sluicegate_unwritten_buckets") != 0.0 {
                return false;
            }
        }
        true
    }

    /// Waits until that is so.
    ///
    /// # Panics
    /// It is not within a minute, which is long for a machine that stalls too.
    pub async fn settled(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.is_settled().await {
            let log = self.sidecar.log();
            assert!(Instant::now() < deadline, "the store is not back: {log}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// What is left of a limit, by a decision that only looks, asked until there is a verdict: a machine that stalls may exceed
    /// the store's deadline.
    pub async fn look(&self, decision: &Value) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(left) = self.look_once(decision).await {
                return left;
            }
            assert!(Instant::now() < deadline, "nothing says what is left");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn look_once(&self, decision: &Value) -> Option<u64> {
        let url = self.sidecar.url("/v1/decide");
        let (_, body) = post(&url, json!({ "decisions": [decision] }).to_string()).await;
        let answer: Value = serde_json::from_str(&body).ok()?;
        answer["verdicts"][0]["remaining"].as_u64()
    }

    /// Has the sidecar decide over as many windows as one call may have, more than a script of 100,000 instructions can; none
    /// of them is a window of the clients.
    pub async fn decide_huge(&self, call: u32) {
        let url = self.sidecar.url("/v1/decide");
        let decision = |decision: u32| {
            let check = |check: u32| json!({ "limit": "huge", "key": format!("{}", (call * 60 + decision) * 8 + check) });
            json!({ "checks": (0..8).map(check).collect::<Vec<_>>() })
        };
        let decisions: Vec<_> = (0..60).map(decision).collect();
        let (status, body) = post(&url, json!({ "decisions": decisions }).to_string()).await;
        assert_eq!(status, 200, "{body}");
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
            Place::Link => {
                let link = store.link.insert(Link::start());
                let address = link.server();
                let bind = ["--bind", "127.0.0.1", &address, "--protected-mode", "no"];
                let redis = store.redis.insert(Redis::start_with(&bind).await);
                format!("redis://{}:{}", link.own(), redis.port())
            }
            Place::Redis | Place::SteppedClock | Place::Pair => {
                let redis = if place == Place::SteppedClock {
                    let clock = store.clock.insert(SteppedClock::build(folder));
                    Redis::start_in(&[], &clock.environment()).await
                } else {
                    // With commands that slow its start, which are hidden otherwise.
                    let hidden = ["--enable-debug-command", "--enable-protected-configs"];
                    Redis::start_with(&hidden.map(|name| [name, "yes"]).concat()).await
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
            Place::Replicated => {
                let quickly = ["--cluster-node-timeout", "1000"].map(str::to_owned);
                let quickly = quickly.to_vec();
                let cluster = Cluster::start_with(async |_| quickly.clone()).await;
                let cluster = store.cluster.insert(cluster);
                let slot = cluster.slot(rules::everyone()).await;
                let owner = cluster.owner(slot).await;
                store.replica = Some(cluster.add_replica(owner).await);
                cluster.url()
            }
        };
        (store, url)
    }
}

async fn envoy_of(folder: &TempDir, sidecar: u16, upstream: u16) -> (Envoy, Value, PathBuf) {
    let mut listener = Value::Null;
    // Each Envoy watches a file of its own.
    let own = tempfile::tempdir_in(folder.path()).unwrap().keep();
    let envoy = Envoy::asking(sidecar).upstream(upstream);
    let envoy = envoy.plugin(plugin());
    let envoy = envoy.patch(|config| listener = from_file(config, &own));
    let envoy = envoy.start(&own).await;
    envoy.listens().await;
    (envoy, listener, own)
}
