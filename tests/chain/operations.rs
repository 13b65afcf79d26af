//! Peek, settle and reset over HTTP, with the same meaning on every store.

use serde_json::{Value, json};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{self, ALGORITHMS, Policy, ask, check};

/// A limit for each algorithm, named after it: 5 units in two windows.
fn policy(store: &str) -> String {
    let windows = "windows: [{ quota: 5, per: 1h }, { quota: 5, per: 366d }]";
    let of = |policy: Policy, algorithm: &str| {
        policy.limit(algorithm, &format!("algorithm: {algorithm}, {windows}"))
    };
    ALGORITHMS.into_iter().fold(Policy::on(store), of).text()
}

async fn decide(sidecar: &Sidecar, limit: &str, cost: u64, more: Value) -> Value {
    let mut decision = json!({ "checks": [{ "limit": limit, "key": "k", "cost": cost }] });
    let fields = decision.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    support::decide(sidecar, decision).await
}

/// Takes so many units, or is denied.
async fn takes(sidecar: &Sidecar, limit: &str, cost: u64, outcome: &str) {
    let verdict = decide(sidecar, limit, cost, json!({})).await;
    assert_eq!(verdict["outcome"], outcome, "{limit}: {verdict}");
}

/// Settles the receipt of a verdict; what became of it.
async fn settles(sidecar: &Sidecar, limit: &str, of: &Value, units: u64) -> Value {
    let entry = json!({ "limit": limit, "key": "k", "receipt": of["receipt"][0], "units": units });
    let mut answer = ask(sidecar.port, "/v1/settle", json!({ "settles": [entry] })).await;
    answer["outcomes"][0].take()
}

fn has_left(verdict: &Value, remaining: u64) {
    let told = (&verdict["outcome"], &verdict["remaining"]);
    assert_eq!(told, (&json!("admitted"), &json!(remaining)), "{verdict}");
}

async fn peeks_settles_and_resets(sidecar: &Sidecar) {
    for limit in ALGORITHMS {
        let taken = decide(sidecar, limit, 3, json!({ "receipt": true })).await;
        has_left(&taken, 2);
        // A peek answers as a take would, but takes nothing, however often.
        for _ in 0..3 {
            let peek = decide(sidecar, limit, 2, json!({ "peek": true })).await;
            has_left(&peek, 2);
            let peek = decide(sidecar, limit, 3, json!({ "peek": true })).await;
            assert_eq!(peek["outcome"], "denied", "{limit}: {peek}");
            assert!(peek["retry_after_ms"].as_u64().unwrap() > 0);
            has_left(&decide(sidecar, limit, 0, json!({})).await, 2);
        }
        takes(sidecar, limit, 2, "admitted").await;
        takes(sidecar, limit, 1, "denied").await;
        // A receipt returns exactly what was taken with it and not used, and is settled once.
        let returned = settles(sidecar, limit, &taken, 1).await;
        let expected = json!({ "outcome": "returned", "units": 2 });
        assert_eq!(returned, expected, "{limit}");
        let again = settles(sidecar, limit, &taken, 0).await;
        assert_eq!(again, json!({ "outcome": "unknown" }), "{limit}");
        takes(sidecar, limit, 3, "denied").await;
        takes(sidecar, limit, 1, "admitted").await;
        // What is used beyond it is taken, whatever the limit; and what asks is denied when nothing is left.
        let asked = decide(sidecar, limit, 0, json!({ "receipt": true })).await;
        has_left(&asked, 1);
        let charged = settles(sidecar, limit, &asked, 7).await;
        let expected = json!({ "outcome": "charged", "units": 7 });
        assert_eq!(charged, expected, "{limit}");
        let asked = decide(sidecar, limit, 0, json!({ "receipt": true })).await;
        assert_eq!(asked["outcome"], "denied", "{limit}: {asked}");
        assert!(asked["retry_after_ms"].as_u64().unwrap() > 0, "{asked}");
        has_left(&decide(sidecar, limit, 0, json!({})).await, 0);
        // A reset clears the limit's counts.
        let body = json!({ "resets": [check(limit, "k"), check("nope", "k")] });
        let reset = ask(sidecar.admin_port, "/v1/reset", body).await;
        let expected = json!({ "outcome": "reset", "held": true });
        assert_eq!(reset["outcomes"][0], expected, "{limit}");
        assert_eq!(reset["outcomes"][1]["code"], "unknown_limit");
        takes(sidecar, limit, 5, "admitted").await;
    }
}

#[tokio::test]
async fn peek_settle_and_reset_mean_the_same_on_every_store() {
    let redis = Redis::start().await;
    for store in ["memory", &redis.url()] {
        let sidecar = Sidecar::alone(&policy(store)).await;
        peeks_settles_and_resets(&sidecar).await;
    }
}
