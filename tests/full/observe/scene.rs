//! A chain that Prometheus scrapes, and its traffic: clients of four rules, a noisy client, a worker without Envoy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::repository;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use sluicegate_tests_full::prometheus::Prometheus;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::shorten::shorten;

/// Quota of `everyone`, which is used and never denies; a reload changes it.
pub const PLENTY: u32 = 1000;

/// Burst of `bucket`. A client takes half of it once a second, when it is full again.
pub const BURST: u32 = 10;

/// The chain, Prometheus and the traffic, on ports and in a folder of their own.
pub struct Scene {
    pub redis: Redis,
    pub sidecar: Sidecar,
    pub prometheus: Prometheus,
    noisy: Arc<AtomicBool>,
    traffic: Vec<JoinHandle<()>>,
    pub envoy: Envoy,
    // Deleted with the scene.
    _folder: TempDir,
}

impl Scene {
    /// Starts all processes and the traffic.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start().await;
        let sidecar = Sidecar::start(&policy(&redis.url(), PLENTY), folder.path()).await;
        let upstream = upstream::start().await;
        let envoy = Envoy::asking(sidecar.port)
            .upstream(upstream)
            .plugin(plugin())
            .start(folder.path())
            .await;
        let rules = ["recording.yml", "alerts.yml"].map(|name| {
            let path = repository("deploy/prometheus").join(name);
            let short = folder.path().join(name);
            std::fs::write(&short, shorten(&std::fs::read_to_string(path).unwrap())).unwrap();
            short
        });
        let targets = [
            ("sluicegate", format!("127.0.0.1:{}", sidecar.admin_port)),
            (
                "sluicegate-envoy",
                format!("127.0.0.1:{}", envoy.admin_port),
            ),
        ];
        let rules = rules.each_ref().map(|rule| rule.as_path());
        let prometheus = Prometheus::start(folder.path(), &targets, &rules).await;
        let noisy = Arc::new(AtomicBool::new(true));
        let traffic = traffic(&envoy, sidecar.port, &noisy);
        Self {
            redis,
            sidecar,
            prometheus,
            noisy,
            traffic,
            envoy,
            _folder: folder,
        }
    }

    /// Turns the client that exceeds its limit on or off.
    pub fn set_noisy(&self, is: bool) {
        self.noisy.store(is, Ordering::Relaxed);
    }

    /// Replaces the policy.
    pub fn write_policy(&self, text: &str) {
        std::fs::write(&self.sidecar.policy, text).unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.traffic.iter().for_each(JoinHandle::abort);
    }
}

/// Seconds since 1970, as Prometheus counts.
pub fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

/// `store_timeout` is half a second, so that a stall of the machine is not an outage.
///
/// `everyone` denies while Redis is away: with shares, requests would get no verdict for a tenth of a second only, and no
/// alert could be sure to see it.
pub fn policy(store: &str, plenty: u32) -> String {
    format!(
        "store: {store}\nstore_timeout: 500ms\nlimits:\n\
         \x20 per-key:\n    algorithm: sliding_log\n    windows: [{{ quota: 10, per: 2s }}]\n\
         \x20 pooled:\n    algorithm: sliding_window\n    windows: [{{ quota: 100000, per: 10m }}]\n    lease: {{}}\n\
         \x20 bucket:\n    algorithm: token_bucket\n    windows: [{{ quota: 600, per: 1m, burst: {BURST} }}]\n\
         \x20 settled:\n    algorithm: sliding_window\n    windows: [{{ quota: 100000, per: 10m }}]\n\
         \x20 streams:\n    algorithm: concurrency\n    windows: [{{ quota: 100, per: 5s }}]\n\
         \x20 everyone:\n    when_store_is_down: deny\n    algorithm: sliding_window\n    windows: [{{ quota: {plenty}, per: 1m }}]\n\
         rules: {}\n",
        rules()
    )
}

/// It runs the set that `envoy/envoy.yaml` runs, which the runbook's commands read.
fn plugin() -> Value {
    json!({ "version": 2, "sidecar": { "cluster": "sluicegate", "timeout": "1s" } })
}

/// Without a verdict, `site` is let through and `orders` refused; `search-trial` is a shadow rule. `answers` uses three quarters of
/// what it reserves.
fn rules() -> Value {
    let key = json!([{ "header": "x-api-key" }]);
    json!({ "default": { "rules": [
        { "name": "site", "match": { "path_prefix": "/site" }, "when_unavailable": "allow",
          "checks": [{ "limit": "per-key", "key": key }] },
        { "name": "orders", "match": { "path_prefix": "/orders" }, "when_unavailable": "deny",
          "checks": [{ "limit": "everyone", "key": [{ "constant": "everyone" }] }] },
        { "name": "answers", "match": { "path_prefix": "/answers" }, "when_unavailable": "allow",
          "checks": [{ "limit": "settled", "key": key,
                       "cost": { "reserve": 4, "settle": { "from": { "status": { "200": 3 } } } } }] },
        { "name": "search-trial", "match": { "path_prefix": "/search" }, "when_unavailable": "allow", "shadow": true,
          "checks": [{ "limit": "per-key", "key": key }] },
    ]}})
}

fn traffic(envoy: &Envoy, sidecar_port: u16, noisy: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let always = Arc::new(AtomicBool::new(true));
    let clients = [
        // Below the limit, each nearer to it than the previous one.
        ("/site", "alice", 2, &always),
        ("/site", "bob", 3, &always),
        ("/site", "carol", 4, &always),
        ("/orders", "dave", 6, &always),
        ("/orders", "erin", 6, &always),
        ("/answers", "grace", 5, &always),
        // Over the limit.
        ("/search", "frank", 10, &always),
        ("/site", "noisy", 40, noisy),
    ];
    let mut tasks: Vec<_> = clients
        .map(|(path, key, per_second, when)| {
            let request = client().get(envoy.url(path)).header("x-api-key", key);
            each(per_second, when, request)
        })
        .into();
    let url = format!("http://127.0.0.1:{sidecar_port}/v1/decide");
    let question = r#"{"decisions":[{"checks":[{"limit":"per-key","key":"worker","cost":1}]}]}"#;
    tasks.push(each(12, noisy, client().post(&url).body(question)));
    let bucket = json!({ "limit": "bucket", "key": "worker", "cost": BURST / 2 });
    let bucket = json!({ "decisions": [{ "checks": [bucket] }] }).to_string();
    tasks.push(each(1, &always, client().post(&url).body(bucket)));
    // A key that is hot enough for leases. Not all of a lease at once, or it would be empty whenever somebody looks.
    let pooled = json!({ "checks": [{ "limit": "pooled", "key": "hot" }] });
    let pooled = json!({ "decisions": vec![pooled; 5] }).to_string();
    tasks.push(each(60, &always, client().post(&url).body(pooled)));
    // More than one at a time, so that some are in use whenever somebody looks.
    tasks.extend((0..3).map(|_| streams(sidecar_port)));
    tasks
}

/// Takes a slot, and frees it half a second later, again and again.
fn streams(sidecar_port: u16) -> JoinHandle<()> {
    let call = move |path: &str, body: Value| {
        let url = format!("http://127.0.0.1:{sidecar_port}{path}");
        client().post(url).body(body.to_string()).send()
    };
    tokio::spawn(async move {
        loop {
            let check = json!({ "limit": "streams", "key": "viewer" });
            let taken = call(
                "/v1/decide",
                json!({ "decisions": [{ "checks": [check] }] }),
            )
            .await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The sidecar may be away.
            let Ok(taken) = taken else { continue };
            let taken = taken.text().await.unwrap_or_default();
            let taken: Value = serde_json::from_str(&taken).unwrap_or_default();
            let receipt = &taken["verdicts"][0]["receipt"][0];
            let entry =
                json!({ "limit": "streams", "key": "viewer", "receipt": receipt, "units": 0 });
            let _ = call("/v1/settle", json!({ "settles": [entry] })).await;
        }
    })
}

/// Sends a request `per_second` times a second while `when` is true.
fn each(per_second: u32, when: &Arc<AtomicBool>, request: RequestBuilder) -> JoinHandle<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let when = Arc::clone(when);
    tokio::spawn(async move {
        loop {
            ticks.tick().await;
            if when.load(Ordering::Relaxed) {
                // Other tests check the answers.
                let _ = request.try_clone().expect("a body in memory").send().await;
            }
        }
    })
}
