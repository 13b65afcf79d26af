//! Overrides: set on one sidecar and felt on all, kept over restarts and outages, with the counts kept.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Chain, Policy, ask, decide, decided, number, take};

mod fleet;
mod lost;
pub mod operator;
mod recipes;
mod slots;
mod switch;

use fleet::Fleet;

/// Changes the override of a key with these further fields; answered with this status.
async fn change(
    sidecar: &Sidecar,
    method: Method,
    (limit, key): (&str, &str),
    more: &Value,
    expected: u16,
) -> Value {
    let mut body = json!({ "limit": limit, "key": key });
    let fields = body.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    let (status, answer) = sidecar.change_override(method, body.to_string()).await;
    assert_eq!(status, expected, "{body}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

async fn set(sidecar: &Sidecar, limit: &str, key: &str, terms: Value) -> Value {
    change(sidecar, Method::PUT, (limit, key), &terms, 200).await
}

async fn remove(sidecar: &Sidecar, limit: &str, key: &str) -> Value {
    change(sidecar, Method::DELETE, (limit, key), &json!({}), 200).await
}

/// An answer has these fields.
fn shows(answer: &Value, expected: &Value) {
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&answer[field], value, "{field} of {answer}");
    }
}

/// Waits until a sidecar that has just started has read the store's.
async fn list(sidecar: &Sidecar) -> Vec<Value> {
    let url = sidecar.admin("/v1/overrides");
    eventually("a list", async || get(&url).await.0 != 503).await;
    let (status, answer) = get(&url).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["overrides"].as_array().unwrap().clone()
}

/// How many of so many are admitted.
async fn admitted(sidecar: &Sidecar, limit: &str, key: &str, asked: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..asked {
        admitted += usize::from(take(sidecar, limit, key).await["outcome"] == "admitted");
    }
    admitted
}

fn rfc3339_in(seconds: u64) -> String {
    let at = std::time::SystemTime::now() + Duration::from_secs(seconds);
    humantime::format_rfc3339_millis(at).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_hold_while_the_store_is_away() {
    let mut redis = Redis::start().await;
    let policy = Policy::on(redis.url()).timeout("50ms");
    let policy = policy.window("per-key", "sliding_log", 5, "1h").text();
    let sidecar = Sidecar::alone(&policy).await;
    set(&sidecar, "per-key", "u", json!({ "unlimited": true })).await;
    set(&sidecar, "per-key", "b", json!({ "blocked": true })).await;
    set(&sidecar, "per-key", "q", json!({ "quota": 7 })).await;
    sidecar.knows_of(1).await;
    redis.kill();
    eventually("the store is down", async || {
        take(&sidecar, "per-key", "probe").await["outcome"] == "admitted"
            && sidecar.metric("sluicegate_store_up").await == 0.0
    })
    .await;
    assert_eq!(admitted(&sidecar, "per-key", "u", 20).await, 20);
    assert_eq!(take(&sidecar, "per-key", "b").await["outcome"], "denied");
    // Its share is of the override's quota.
    assert_eq!(admitted(&sidecar, "per-key", "q", 10).await, 7);
    let (of_key, blocked) = (("per-key", "x"), json!({ "blocked": true }));
    let answer = change(&sidecar, Method::PUT, of_key, &blocked, 503).await;
    shows(&answer, &json!({ "code": "store_unavailable" }));
    // It was reached, so it does not advise on the address.
    let words = "set --limit per-key --key x --unlimited";
    let (status, printed) = operator::command(&sidecar, words);
    assert_eq!(status, Some(69), "{printed}");
    assert!(!printed.contains("--admin-listen"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_decides_for_its_check_and_the_others_decide_still() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [sidecar, _] = &fleet.sidecars;
    set(sidecar, "per-key", "u", json!({ "unlimited": true })).await;
    let both = json!({ "checks": [
        { "limit": "per-key", "key": "u", "cost": 1_000 },
        { "limit": "rate", "key": "u", "cost": 3 },
    ], "receipt": true });
    let verdict = decide(sidecar, both.clone()).await;
    shows(&verdict, &json!({ "outcome": "admitted", "limit": "rate" }));
    let receipts = verdict["receipt"].as_array().unwrap().clone();
    assert_eq!(receipts.len(), 2, "one for each check");
    assert_eq!(decide(sidecar, both).await["outcome"], "denied");
    assert_eq!(receipts[0], "", "nothing was taken of it");
    let entry = json!({ "limit": "rate", "key": "u", "receipt": receipts[1], "units": 0 });
    let answer = ask(sidecar.port, "/v1/settle", json!({ "settles": [entry] })).await;
    assert_eq!(answer["outcomes"][0]["units"], 3, "{answer}");
    // A denial takes nothing from the others.
    set(sidecar, "per-key", "b", json!({ "blocked": true })).await;
    let blocked = json!({ "checks": [
        { "limit": "rate", "key": "b" }, { "limit": "per-key", "key": "b" },
    ] });
    for _ in 0..3 {
        let verdict = decide(sidecar, blocked.clone()).await;
        shows(&verdict, &json!({ "outcome": "denied", "check": 1 }));
    }
    assert_eq!(admitted(sidecar, "rate", "b", 6).await, 5);
    let by_override = async |verdict| decided(sidecar, "per-key", "override", verdict).await;
    assert_eq!(by_override("denied").await, 3);
    let alone = json!({ "checks": [{ "limit": "per-key", "key": "u" }], "receipt": true });
    let verdict = decide(sidecar, alone).await;
    assert_eq!(verdict["receipt"].as_array().unwrap().len(), 1);
    assert_eq!(by_override("admitted").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_envoy_feel_overrides() {
    // Plain, so that the test can spell the key.
    let rules = json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key", "plain": true }] }],
        "when_unavailable": "deny",
    }]);
    let chain = Chain::hourly(5, rules).await;
    let sidecar = &chain.sidecar;
    let get = async |key: &str| chain.get("/", key).await;
    let key = |name: &str| format!("x-api-key={name}");
    for _ in 0..5 {
        assert_eq!(get("t").await.status(), 200);
    }
    assert_eq!(get("t").await.status(), 429);
    set(sidecar, "per-key", &key("t"), json!({ "quota": 7 })).await;
    // The filter's own certificate ends within denial_ttl.
    eventually("the client feels the raised quota", async || {
        get("t").await.status() == 200
    })
    .await;
    set(sidecar, "per-key", &key("u"), json!({ "unlimited": true })).await;
    for _ in 0..20 {
        assert_eq!(get("u").await.status(), 200);
    }
    let reason = "said to nobody";
    let blocked = json!({ "blocked": true, "until": rfc3339_in(3_600), "reason": reason });
    set(sidecar, "per-key", &key("b"), blocked).await;
    let denied = get("b").await;
    assert_eq!(denied.status(), 429);
    assert!(
        (3_500..=3_600).contains(&number(&denied, "retry-after")),
        "{denied:?}"
    );
    assert!(!denied.text().await.unwrap().contains(reason));
    remove(sidecar, "per-key", &key("b")).await;
    eventually("the client is let in again", async || {
        get("b").await.status() == 200
    })
    .await;
}
