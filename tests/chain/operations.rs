//! Peek, give-back and reset over HTTP, with the same meaning on every store.

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

fn has_left(verdict: &Value, remaining: u64) {
    let told = (&verdict["outcome"], &verdict["remaining"]);
    assert_eq!(told, (&json!("admitted"), &json!(remaining)), "{verdict}");
}

async fn peeks_gives_back_and_resets(sidecar: &Sidecar) {
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
        // A receipt returns exactly what was taken with it.
        let entry = json!({ "limit": limit, "key": "k", "receipt": taken["receipt"][0] });
        // A receipt that is used again returns nothing.
        for units in [3, 0] {
            let body = json!({ "give_backs": [entry] });
            let back = ask(sidecar.port, "/v1/give-back", body).await;
            let expected = json!({ "outcome": "given_back", "units": units });
            assert_eq!(back["outcomes"][0], expected, "{limit}");
        }
        takes(sidecar, limit, 4, "denied").await;
        takes(sidecar, limit, 3, "admitted").await;
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
async fn peek_give_back_and_reset_mean_the_same_on_every_store() {
    let redis = Redis::start().await;
    for store in ["memory", &redis.url()] {
        let sidecar = Sidecar::alone(&policy(store)).await;
        peeks_gives_back_and_resets(&sidecar).await;
    }
}
