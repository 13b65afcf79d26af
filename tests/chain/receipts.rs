//! Receipts over HTTP: each is another one, and a store that hangs holds no settle up. That they are settled once, and only by
//! who holds them, and to what they were taken from, `operations`, `tests/engine/holds.rs` and worlds show.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{ALGORITHMS, Policy, ask, check, decide, decide_all, left};

/// A limit for each algorithm, named after it: 9 units in each of two windows.
fn policy(store: &str, timeout: &str) -> String {
    let windows = "[{ quota: 9, per: 1h }, { quota: 9, per: 366d }]";
    let of = |policy: Policy, name: &str| {
        policy.limit(name, &format!("algorithm: {name}, windows: {windows}"))
    };
    let policy = Policy::on(store).timeout(timeout);
    ALGORITHMS.into_iter().fold(policy, of).text()
}

/// Takes from some limits for a key; returns the receipts.
async fn take(sidecar: &Sidecar, limits: &[&str], key: &str, cost: u64) -> Vec<String> {
    let check = |limit: &&str| json!({ "limit": limit, "key": key, "cost": cost });
    let checks: Vec<_> = limits.iter().map(check).collect();
    let mut verdict = decide(sidecar, json!({ "checks": checks, "receipt": true })).await;
    assert_eq!(verdict["outcome"], "admitted", "{verdict}");
    serde_json::from_value(verdict["receipt"].take()).unwrap()
}

async fn settle(sidecar: &Sidecar, entries: &[Value]) -> Vec<Value> {
    let body = json!({ "settles": entries });
    let answer = ask(sidecar.port, "/v1/settle", body).await;
    answer["outcomes"].as_array().unwrap().clone()
}

fn entry(limit: &str, key: &str, receipt: &str) -> Value {
    json!({ "limit": limit, "key": key, "receipt": receipt, "units": 0 })
}

async fn returned(sidecar: &Sidecar, entry: Value) -> u64 {
    let outcome = &settle(sidecar, &[entry]).await[0];
    assert_eq!(outcome["outcome"], "returned", "{outcome}");
    outcome["units"].as_u64().unwrap()
}

#[tokio::test]
async fn receipts_are_unique_and_a_denial_has_none() {
    let sidecar = Sidecar::alone(&policy("memory", "2s")).await;
    let mut seen = std::collections::BTreeSet::new();
    for key in 0..50 {
        for receipt in take(&sidecar, &ALGORITHMS, &key.to_string(), 9).await {
            assert_eq!(receipt.len(), 32);
            assert!(seen.insert(receipt));
        }
    }
    let checks = [check("sliding_log", "0")];
    let verdict = decide(&sidecar, json!({ "checks": checks, "receipt": true })).await;
    assert_eq!(verdict["outcome"], "denied");
    assert!(verdict.get("receipt").is_none(), "{verdict}");
    // The same check twice in a decision is one check of both costs, with one receipt.
    let twice = take(&sidecar, &["sliding_log", "sliding_log"], "twice", 2).await;
    assert_eq!(twice[0], twice[1]);
    let entry = entry("sliding_log", "twice", &twice[0]);
    assert_eq!(returned(&sidecar, entry).await, 4);
}

/// Of programs, each alone, and of filters, many together.
#[tokio::test]
async fn settles_of_a_hot_tenant_cost_the_store_fifty_calls_a_second() {
    let redis = Redis::start().await;
    let limit = "algorithm: sliding_window, windows: [{ quota: 1000000, per: 1h }]";
    let policy = Policy::on(redis.url()).timeout("5s").limit("hot", limit);
    let sidecar = Sidecar::alone(&policy.text()).await;
    let mut entries = Vec::new();
    for _ in 0..20 {
        let one =
            json!({ "checks": [{ "limit": "hot", "key": "k", "cost": 10 }], "receipt": true });
        for verdict in decide_all(&sidecar, vec![one; 50]).await {
            let receipt = verdict["receipt"][0].as_str().unwrap();
            entries.push(entry("hot", "k", receipt));
        }
    }
    assert_eq!(left(&sidecar, "hot", "k").await, 990_000);
    let (alone, together) = entries.split_at(500);
    let requests = alone.chunks(1).chain(together.chunks(10));
    let before = redis.script_calls().await;
    let began = Instant::now();
    let outcomes = stream::iter(requests).map(|some| settle(&sidecar, some));
    let outcomes: Vec<_> = outcomes.buffer_unordered(64).collect().await;
    let (took, calls) = (began.elapsed(), redis.script_calls().await - before);
    let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    assert_eq!(outcomes.len(), 1_000);
    for outcome in outcomes {
        assert_eq!(outcome, json!({ "outcome": "returned", "units": 10 }));
    }
    assert_eq!(left(&sidecar, "hot", "k").await, 1_000_000);
    // And what a sidecar asks of its store each second.
    let most = 10 + 55 * (took.as_millis() as u64).div_ceil(1_000);
    assert!(calls <= most, "{calls} calls in {took:?}");
}

#[tokio::test]
async fn a_whole_request_of_settles_does_not_wait_for_a_store_that_hangs() {
    let redis = Redis::start().await;
    let sidecar = Sidecar::alone(&policy(&redis.url(), "250ms")).await;
    let [receipt] = take(&sidecar, &["sliding_log"], "k", 3)
        .await
        .try_into()
        .unwrap();
    let mut entries: Vec<_> = (0..1_023)
        .map(|key| entry("sliding_log", &key.to_string(), &receipt))
        .collect();
    entries.push(entry("sliding_log", "k", &receipt));
    redis.pause();
    let asked = Instant::now();
    let outcomes = settle(&sidecar, &entries).await;
    let waited = asked.elapsed();
    redis.resume();
    assert!(outcomes.iter().all(|one| one["outcome"] == "unavailable"));
    // A call for each would be minutes.
    assert!(waited < Duration::from_secs(25), "{waited:?}");
    // Trying again is harmless, whether or not the first attempt succeeded.
    let outcomes = settle(&sidecar, &entries).await;
    let units: u64 = outcomes
        .iter()
        .filter_map(|one| one["units"].as_u64())
        .sum();
    assert!(units == 3 || units == 0, "{units}");
    assert_eq!(left(&sidecar, "sliding_log", "k").await, 9);
}
