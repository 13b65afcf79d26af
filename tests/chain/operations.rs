//! Peek, give-back and reset over HTTP, with the same meaning on every store.

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

const ALGORITHMS: [&str; 4] = [
    "sliding_log",
    "sliding_window",
    "fixed_window",
    "token_bucket",
];

/// A limit for each algorithm, named after it: 5 units in two windows.
fn policy(store: &str) -> String {
    let limits = ALGORITHMS.map(|algorithm| {
        format!(
            "  {algorithm}:\n    algorithm: {algorithm}\n    windows: [{{ quota: 5, per: 1h }}, {{ quota: 5, per: 24h }}]\n"
        )
    });
    format!(
        "store: {store}\nstore_timeout: 2s\nlimits:\n{}",
        limits.concat()
    )
}

async fn ask(port: u16, path: &str, body: Value) -> Value {
    let (status, answer) = post(&format!("http://127.0.0.1:{port}{path}"), body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

async fn decide(sidecar: &Sidecar, limit: &str, cost: u64, more: Value) -> Value {
    let mut decision = json!({ "checks": [{ "limit": limit, "key": "k", "cost": cost }] });
    decision
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    ask(
        sidecar.port,
        "/v1/decide",
        json!({ "decisions": [decision] }),
    )
    .await["verdicts"][0]
        .clone()
}

async fn peeks_gives_back_and_resets(sidecar: &Sidecar) {
    for limit in ALGORITHMS {
        let taken = decide(sidecar, limit, 3, json!({ "receipt": true })).await;
        assert_eq!(
            (&taken["outcome"], &taken["remaining"]),
            (&json!("admitted"), &json!(2)),
            "{taken}"
        );
        // A peek answers as a take would, but takes nothing, however often.
        for _ in 0..3 {
            let peek = decide(sidecar, limit, 2, json!({ "peek": true })).await;
            assert_eq!(
                (&peek["outcome"], &peek["remaining"]),
                (&json!("admitted"), &json!(2)),
                "{limit}: {peek}"
            );
            let peek = decide(sidecar, limit, 3, json!({ "peek": true })).await;
            assert_eq!(peek["outcome"], "denied", "{limit}: {peek}");
            assert!(peek["retry_after_ms"].as_u64().unwrap() > 0);
            let look = decide(sidecar, limit, 0, json!({})).await;
            assert_eq!(
                (&look["outcome"], &look["remaining"]),
                (&json!("admitted"), &json!(2)),
                "{limit}: {look}"
            );
        }
        assert_eq!(
            decide(sidecar, limit, 2, json!({})).await["outcome"],
            "admitted",
            "{limit}"
        );
        assert_eq!(
            decide(sidecar, limit, 1, json!({})).await["outcome"],
            "denied",
            "{limit}"
        );
        // A receipt returns exactly what was taken with it.
        let entry = json!({ "limit": limit, "key": "k", "receipt": taken["receipt"][0] });
        // A receipt that is used again returns nothing.
        for units in [3, 0] {
            let body = json!({ "give_backs": [entry] });
            let back = ask(sidecar.port, "/v1/give-back", body).await;
            let expected = json!({ "outcome": "given_back", "units": units });
            assert_eq!(back["outcomes"][0], expected, "{limit}");
        }
        assert_eq!(
            decide(sidecar, limit, 4, json!({})).await["outcome"],
            "denied",
            "{limit}"
        );
        assert_eq!(
            decide(sidecar, limit, 3, json!({})).await["outcome"],
            "admitted",
            "{limit}"
        );
        // A reset clears the limit's counts.
        let entry = json!({ "limit": limit, "key": "k" });
        let body = json!({ "resets": [entry, { "limit": "nope", "key": "k" }] });
        let reset = ask(sidecar.admin_port, "/v1/reset", body).await;
        assert_eq!(
            reset["outcomes"][0],
            json!({ "outcome": "reset", "held": true }),
            "{limit}"
        );
        assert_eq!(reset["outcomes"][1]["code"], "unknown_limit");
        assert_eq!(
            decide(sidecar, limit, 5, json!({})).await["outcome"],
            "admitted",
            "{limit}"
        );
    }
}

#[tokio::test]
async fn peek_give_back_and_reset_mean_the_same_on_the_embedded_store() {
    let folder = tempfile::tempdir().unwrap();
    peeks_gives_back_and_resets(&Sidecar::start(&policy("memory"), folder.path()).await).await;
}

#[tokio::test]
async fn peek_give_back_and_reset_mean_the_same_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    peeks_gives_back_and_resets(&Sidecar::start(&policy(&redis.url()), folder.path()).await).await;
}
