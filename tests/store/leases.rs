//! Leases of a real sidecar: what ends them, and that no unit is lost or spent twice. `make world` has several with filters, in
//! outages, and dying.

use std::cell::Cell;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_protocol::LEASES_HEADER;
use sluicegate_tests::client::client;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, metric_in};

const QUOTA: u64 = 100_000;
/// Long leases, so that a machine that stalls does not end them before a test looks; the step is an hour.
const LEASE: &str = ", lease: { longest: 10s }";

/// A policy whose limit `hot` has these leases, or none.
fn policy(store: &str, lease: &str) -> String {
    let window = format!("windows: [{{ quota: {QUOTA}, per: 240h, precision: 1h }}]");
    let hot = format!("algorithm: sliding_window, when_store_is_down: deny, {window}{lease}");
    let policy = Policy::on(store).timeout("1s").limit("hot", &hot);
    policy.window("small", "sliding_log", 5, "1h").text()
}

fn with_leases(store: &str) -> String {
    policy(store, LEASE)
}

/// A Redis, and a sidecar that takes leases there.
async fn on_redis() -> (Redis, Sidecar) {
    let redis = Redis::start().await;
    let sidecar = Sidecar::alone(&with_leases(&redis.url())).await;
    (redis, sidecar)
}

fn check(limit: &str) -> Value {
    json!({ "limit": limit, "key": "k" })
}

async fn verdicts(sidecar: &Sidecar, decisions: Vec<Value>) -> Vec<Value> {
    let answer = sidecar.answer(json!(decisions)).await;
    answer["verdicts"].as_array().expect("verdicts").clone()
}

/// The verdict on one unit of the limit `hot`.
async fn verdict(sidecar: &Sidecar) -> Value {
    verdicts(sidecar, times(1, &[check("hot")])).await.remove(0)
}

async fn admit(sidecar: &Sidecar, decisions: Vec<Value>) -> u64 {
    let verdicts = verdicts(sidecar, decisions).await;
    let admitted = verdicts
        .iter()
        .filter(|verdict| verdict["outcome"] == "admitted");
    admitted.count() as u64
}

fn times(number: usize, checks: &[Value]) -> Vec<Value> {
    vec![json!({ "checks": checks }); number]
}

async fn units(sidecar: &Sidecar, event: &str) -> u64 {
    units_in(&sidecar.metrics().await, event)
}

fn units_in(metrics: &str, event: &str) -> u64 {
    let name = format!("sluicegate_lease_units_total{{event=\"{event}\",limit=\"hot\"}}");
    metric_in(metrics, &name) as u64
}

async fn held(sidecar: &Sidecar) -> u64 {
    held_in(&sidecar.metrics().await)
}

fn held_in(metrics: &str) -> u64 {
    metric_in(metrics, "sluicegate_lease_units_held{limit=\"hot\"}") as u64
}

/// What the store holds for the key: a peek is never made from a lease.
async fn used(sidecar: &Sidecar) -> u64 {
    let peek = json!({ "checks": [check("hot")], "peek": true });
    let verdict = verdicts(sidecar, vec![peek]).await.remove(0);
    verdict["quota"].as_u64().expect("a quota") - verdict["remaining"].as_u64().expect("remaining")
}

/// Asks until the sidecar holds a lease with some units; how many decisions were admitted.
async fn warm(sidecar: &Sidecar) -> u64 {
    let admitted = Cell::new(0);
    eventually("the sidecar has a lease", async || {
        let more = admit(sidecar, times(20, &[check("hot")])).await;
        admitted.set(admitted.get() + more);
        held(sidecar).await >= 50
    })
    .await;
    admitted.get()
}

/// Waits until the sidecar holds nothing; then every unit is accounted for, here and in the store.
async fn all_is_accounted_for(sidecar: &Sidecar, admitted: u64) {
    // What is on its way back is neither held nor returned.
    eventually("everything is returned", async || {
        let metrics = sidecar.metrics().await;
        let of = |event| units_in(&metrics, event);
        held_in(&metrics) == 0 && of("granted") == of("spent") + of("returned")
    })
    .await;
    let spent = units(sidecar, "spent").await;
    assert!(spent > 0);
    eventually("the store holds what was admitted", async || {
        used(sidecar).await == admitted
    })
    .await;
}

#[tokio::test]
async fn a_hot_key_is_admitted_without_calls_of_the_store() {
    let (_redis, sidecar) = on_redis().await;
    let mut admitted = warm(&sidecar).await;
    let by_lease =
        "sluicegate_decisions_total{limit=\"hot\",source=\"lease\",verdict=\"admitted\"}";
    let before = sidecar.metric(by_lease).await;
    let verdict = verdict(&sidecar).await;
    admitted += 1;
    assert_eq!(verdict["outcome"], "admitted");
    assert_eq!(verdict["quota"], QUOTA);
    let remaining = verdict["remaining"].as_u64().unwrap();
    assert!(
        remaining < QUOTA && remaining >= QUOTA - admitted - 1_000,
        "{verdict}"
    );
    assert!((sidecar.metric(by_lease).await - before - 1.0).abs() < 0.5);
    // What wants a receipt, and what only looks, is the store's.
    let asks = [
        json!({ "checks": [check("hot")], "receipt": true }),
        json!({ "checks": [check("hot")], "peek": true }),
    ];
    let verdicts = verdicts(&sidecar, asks.into()).await;
    admitted += 1;
    assert_eq!(verdicts[0]["receipt"].as_array().unwrap().len(), 1);
    assert!((sidecar.metric(by_lease).await - before - 1.0).abs() < 0.5);
    // An override that is set ends the leases, and so does one that is removed.
    block(&sidecar).await;
    assert_eq!(admit(&sidecar, times(3, &[check("hot")])).await, 0);
    let unblocked = json!({ "limit": "hot", "key": "k" });
    let answer = sidecar.change_override(Method::DELETE, unblocked.to_string());
    assert_eq!(answer.await.0, 200);
    admitted += admit(&sidecar, times(1, &[check("hot")])).await;
    all_is_accounted_for(&sidecar, admitted).await;
}

/// Blocks the key by an override.
async fn block(sidecar: &Sidecar) {
    let blocked = json!({ "limit": "hot", "key": "k", "blocked": true });
    let answer = sidecar.change_override(Method::PUT, blocked.to_string());
    assert_eq!(answer.await.0, 200);
}

/// Answers a filter that holds these parts of leases; the parts that it gets.
async fn lend(sidecar: &Sidecar, decisions: Vec<Value>, parts: Value) -> Vec<Value> {
    let asked = client().post(sidecar.url("/v1/decide"));
    let asked = asked.header(LEASES_HEADER, parts.to_string());
    let asked = asked.body(json!({ "decisions": decisions }).to_string());
    let answer = asked.send().await.unwrap().text().await.unwrap();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["leases"].as_array().cloned().unwrap_or_default()
}

/// No decision of the key looks at its leases any more, so a filter got more of a lease of before, and went on admitting.
#[tokio::test]
async fn what_was_taken_before_an_override_is_returned_and_not_lent_to_filters() {
    let (_redis, sidecar) = on_redis().await;
    warm(&sidecar).await;
    let parts = lend(&sidecar, times(1, &[check("hot")]), json!([])).await;
    let mut part = json!({ "id": parts[0]["id"], "spent": 0, "decisions": 0, "wants_per_s": 100 });
    block(&sidecar).await;
    let more = lend(&sidecar, Vec::new(), json!([part])).await;
    assert_eq!(more, Vec::<Value>::new());
    // As the answer's epoch has the filter do.
    part["ended"] = json!(true);
    lend(&sidecar, Vec::new(), json!([part])).await;
    let since = Instant::now();
    eventually("nothing is held", async || held(&sidecar).await == 0).await;
    // By themselves, they end ten seconds after they were taken; the rest is for a machine that stalls.
    let took = since.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test]
async fn a_tighter_limit_in_the_same_decision_does_not_keep_a_hot_limit_from_its_leases() {
    let (redis, mut sidecar) = on_redis().await;
    let (users, admitted) = (Cell::new(0), Cell::new(0));
    eventually("leases are spent", async || {
        // Each user has 5 units in an hour, so the store's answers are about users.
        let of_user = |user: u64| {
            let small = json!({ "limit": "small", "key": user.to_string() });
            json!({ "checks": [small, check("hot")] })
        };
        let first = users.replace(users.get() + 20);
        let more = admit(&sidecar, (first..first + 20).map(of_user).collect()).await;
        admitted.set(admitted.get() + more);
        units(&sidecar, "spent").await >= 200
    })
    .await;
    assert_eq!(admitted, users);
    sidecar.signal("TERM");
    sidecar.wait().await;
    let other = Sidecar::alone(&with_leases(&redis.url())).await;
    assert_eq!(used(&other).await, admitted.get(), "of the hot limit");
}

/// Asks until the store answers.
async fn wait_until_back(sidecar: &Sidecar) {
    eventually("the store answers", async || {
        admit(sidecar, times(1, &[check("hot")])).await == 1
    })
    .await;
}

/// The check of another limit is on another node than the hot key, and is decided by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_has_leases_too() {
    let cluster = Cluster::start().await;
    let policy = with_leases(&cluster.url());
    let mut sidecar = Sidecar::alone(&policy).await;
    wait_until_back(&sidecar).await;
    let mut admitted = used(&sidecar).await + warm(&sidecar).await;
    for user in 0..10 {
        let small = json!({ "limit": "small", "key": user.to_string() });
        admitted += admit(&sidecar, times(7, &[small, check("hot")])).await;
    }
    sidecar.signal("TERM");
    sidecar.wait().await;
    let other = Sidecar::alone(&policy).await;
    wait_until_back(&other).await;
    assert_eq!(used(&other).await, admitted + 1, "with the one just made");
}

#[tokio::test]
async fn a_reset_ends_the_leases_of_its_key() {
    let (_redis, sidecar) = on_redis().await;
    warm(&sidecar).await;
    let answer = sidecar.reset("hot", "k").await;
    assert!(answer.contains("\"held\":true"), "{answer}");
    let spent = units(&sidecar, "spent").await;
    let verdict = verdict(&sidecar).await;
    assert_eq!(verdict["remaining"], QUOTA - 1, "the store decided");
    assert_eq!(units(&sidecar, "spent").await, spent);
    eventually("nothing is held", async || held(&sidecar).await == 0).await;
    assert_eq!(
        used(&sidecar).await,
        1,
        "what was returned was not of the new count"
    );
}

#[tokio::test]
async fn without_terms_in_the_policy_or_a_shared_store_there_are_no_leases() {
    let redis = Redis::start().await;
    let without = Sidecar::alone(&policy(&redis.url(), "")).await;
    let alone = Sidecar::alone(&with_leases("memory")).await;
    for sidecar in [&without, &alone] {
        for _ in 0..50 {
            assert_eq!(admit(sidecar, times(20, &[check("hot")])).await, 20);
        }
        assert_eq!(used(sidecar).await, 1_000);
    }
    assert_eq!(units(&alone, "granted").await, 0);
    assert!(
        !without
            .metrics()
            .await
            .contains("sluicegate_lease_units_total{")
    );
    let receipts = redis.keys().await;
    assert!(
        receipts.iter().all(|key| !key.contains("receipt")),
        "{receipts:?}"
    );
}
