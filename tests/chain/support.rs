//! Helpers for several modules.

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::envoy::{Envoy, MANAGER, Planned, at};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

pub use sluicegate_tests::policy::{
    Policy, generous, per_key, plugin, policy, pushed, question, with_rules, with_sets,
};

/// Every algorithm, by its name in a policy.
pub const ALGORITHMS: [&str; 4] = [
    "sliding_log",
    "sliding_window",
    "fixed_window",
    "token_bucket",
];

/// A connection on which this was sent.
pub async fn sent(port: u16, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// A question as HTTP/1.1.
pub fn post_of(body: &str) -> String {
    let length = body.len();
    format!("POST /v1/decide HTTP/1.1\r\nhost: s\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Asks a port of a sidecar; returns the status and the JSON of the answer.
pub async fn asked(port: u16, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let (status, text) = post(&format!("http://127.0.0.1:{port}{path}"), body).await;
    let answer = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (status, answer)
}

/// Likewise, where the status is 200.
pub async fn ask(port: u16, path: &str, body: Value) -> Value {
    let (status, answer) = asked(port, path, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The verdicts of these decisions, in one request.
pub async fn decide_all(sidecar: &Sidecar, decisions: impl Into<Value>) -> Vec<Value> {
    let body = json!({ "decisions": decisions.into() });
    let mut answer = ask(sidecar.port, "/v1/decide", body).await;
    serde_json::from_value(answer["verdicts"].take()).unwrap()
}

/// The verdict of one decision.
pub async fn decide(sidecar: &Sidecar, decision: Value) -> Value {
    decide_all(sidecar, vec![decision]).await.remove(0)
}

/// A check of one unit.
pub fn check(limit: &str, key: &str) -> Value {
    json!({ "limit": limit, "key": key })
}

/// The verdict of one check.
pub async fn take(sidecar: &Sidecar, limit: &str, key: &str) -> Value {
    decide(sidecar, json!({ "checks": [check(limit, key)] })).await
}

/// What would come of one check.
pub async fn peek(sidecar: &Sidecar, limit: &str, key: &str) -> Value {
    let decision = json!({ "checks": [check(limit, key)], "peek": true });
    decide(sidecar, decision).await
}

/// What a key has left.
pub async fn left(sidecar: &Sidecar, limit: &str, key: &str) -> u64 {
    let look = json!({ "limit": limit, "key": key, "cost": 0 });
    let verdict = decide(sidecar, json!({ "checks": [look], "peek": true })).await;
    let left = verdict["remaining"].as_u64();
    left.unwrap_or_else(|| panic!("{verdict}"))
}

/// How many decisions of a limit a sidecar has counted.
pub async fn decided(sidecar: &Sidecar, limit: &str, source: &str, verdict: &str) -> u64 {
    let labels = format!("limit=\"{limit}\",source=\"{source}\",verdict=\"{verdict}\"");
    let name = format!("sluicegate_decisions_total{{{labels}}}");
    sidecar.metric(&name).await as u64
}

/// The filters of Envoy's connection manager.
pub fn filters(config: &mut Value) -> &mut Vec<Value> {
    let filters = at(config, MANAGER)["http_filters"].as_array_mut();
    filters.expect("a list of filters")
}

/// An Envoy with this plugin configuration that asks the sidecar on this port.
pub async fn envoy(sidecar: u16, plugin: Value) -> Envoy {
    let planned = Envoy::asking(sidecar).plugin(plugin);
    planned.alone().await
}

/// A whole chain, on its own ports.
pub struct Chain {
    pub redis: Redis,
    pub sidecar: Sidecar,
    pub envoy: Envoy,
}

impl Chain {
    /// Starts it with a policy made from Redis's URL, and a plugin configuration, whose rules are the policy's.
    pub async fn start(policy: impl Fn(&str) -> String, mut plugin: Value) -> Self {
        let rules = plugin["rules"].take();
        plugin.as_object_mut().unwrap().remove("rules");
        let policy = |url: &str| with_rules(&policy(url), &rules);
        Self::with(policy, |envoy| envoy.plugin(plugin)).await
    }

    /// Likewise, with an Envoy that differs in more.
    pub async fn with<'a>(
        policy: impl Fn(&str) -> String,
        plan: impl FnOnce(Planned<'a>) -> Planned<'a>,
    ) -> Self {
        let redis = Redis::start().await;
        let sidecar = Sidecar::alone(&policy(&redis.url())).await;
        let planned = plan(Envoy::asking(sidecar.port));
        Self {
            redis,
            envoy: planned.alone().await,
            sidecar,
        }
    }

    /// One that denies by the limit `per-key` of one window, and without a verdict.
    pub async fn of(algorithm: &str, quota: u64, per: &str) -> Self {
        let policy = |url: &str| policy(url, algorithm, quota, per);
        Self::start(policy, plugin(per_key("deny"))).await
    }

    /// One with these rules, for a limit `per-key` of this quota an hour.
    pub async fn hourly(quota: u64, rules: Value) -> Self {
        let policy = |url: &str| policy(url, "sliding_log", quota, "1h");
        Self::start(policy, plugin(rules)).await
    }

    /// Requests a path with an API key.
    pub async fn get(&self, path: &str, key: &str) -> reqwest::Response {
        self.envoy.get(path, &[("x-api-key", key)]).await
    }

    /// The status alone.
    pub async fn status(&self, path: &str, key: &str) -> u16 {
        self.envoy.status(path, key).await
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

/// Files for thousands of connections of this process. One test at a time has them.
pub async fn many_files() -> tokio::sync::MutexGuard<'static, ()> {
    static MANY: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let guard = MANY.lock().await;
    sluicegate_tests::process::limit_files(std::process::id(), 12_000);
    guard
}

/// Where the addresses of an Envoy's sidecar are.
const ENDPOINTS: &str = "/static_resources/clusters/1/load_assignment/endpoints/0/lb_endpoints";

/// An Envoy with so many workers whose cluster has several sidecars.
pub async fn behind(sidecars: &[Sidecar], plugin: Value, workers: u32) -> Envoy {
    let planned = Envoy::asking(sidecars[0].port)
        .plugin(plugin)
        .workers(workers);
    let add = |config: &mut Value| add_sidecars(config, &sidecars[1..]);
    planned.patch(add).alone().await
}

/// Adds sidecars to the cluster of Envoy's configuration that has one.
pub fn add_sidecars(config: &mut Value, sidecars: &[Sidecar]) {
    let endpoints = at(config, ENDPOINTS);
    for sidecar in sidecars {
        let mut other = endpoints[0].clone();
        *at(&mut other, "/endpoint/address/socket_address/port_value") = json!(sidecar.port);
        endpoints.as_array_mut().unwrap().push(other);
    }
}

/// A sidecar with a state directory.
pub async fn with_state(policy: &str) -> (TempDir, Sidecar) {
    let state = tempfile::tempdir().unwrap();
    let planned = Sidecar::with(policy);
    let planned = planned.arguments(&["--state-dir", state.path().to_str().unwrap()]);
    (state, planned.alone().await)
}
