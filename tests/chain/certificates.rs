//! Denial certificates: cached denials are repeated without asking Redis, while that is exact.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::post;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::policy;

async fn decide(sidecar: &Sidecar, cost: u64) -> Value {
    let body =
        json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": "k", "cost": cost }] }] });
    let (_, answer) = post(
        &format!("http://127.0.0.1:{}/v1/decide", sidecar.port),
        body.to_string(),
    )
    .await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["verdicts"][0].clone()
}

async fn from(sidecar: &Sidecar, source: &str) -> f64 {
    let name = format!(
        "sluicegate_decisions_total{{limit=\"per-key\",source=\"{source}\",verdict=\"denied\"}}"
    );
    sidecar.metric(&name).await
}

#[tokio::test]
async fn a_cached_denial_needs_no_redis_and_ends_when_capacity_returns() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let sidecar =
        Sidecar::start(&policy(&redis.url(), "sliding_log", 5, "2s"), folder.path()).await;
    assert_eq!(decide(&sidecar, 5).await["outcome"], "admitted");
    let first = decide(&sidecar, 1).await;
    assert_eq!(first["outcome"], "denied");
    let (hold_ms, retry_ms) = (
        first["hold_ms"].as_u64().unwrap(),
        first["retry_after_ms"].as_u64().unwrap(),
    );
    assert!(
        hold_ms <= retry_ms && hold_ms <= 1_000 && hold_ms > 500,
        "{first}"
    );
    let mut before = retry_ms;
    for _ in 0..50 {
        let again = decide(&sidecar, 1).await;
        assert_eq!(
            (&again["outcome"], &again["remaining"]),
            (&json!("denied"), &json!(0))
        );
        let retry_ms = again["retry_after_ms"].as_u64().unwrap();
        assert!(retry_ms <= before, "the promised time stays where it is");
        before = retry_ms;
    }
    assert!(
        from(&sidecar, "store").await <= 2.0,
        "asked again at most when its second was over"
    );
    assert!(from(&sidecar, "certificate").await >= 48.0);
    // A certificate is for the decision that was denied, not for another cost.
    assert_eq!(decide(&sidecar, 0).await["outcome"], "admitted");
    // The sleep is the tested promise itself.
    tokio::time::sleep(Duration::from_millis(before)).await;
    assert_eq!(decide(&sidecar, 1).await["outcome"], "admitted");
}

#[tokio::test]
async fn a_reset_and_a_raised_limit_take_effect_at_once_on_the_sidecar_that_receives_them() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let text = policy(&redis.url(), "sliding_log", 1, "1h");
    let [changed, other] = [
        Sidecar::start(&text, folder.path()).await,
        Sidecar::start(&text, folder.path()).await,
    ];
    assert_eq!(decide(&changed, 1).await["outcome"], "admitted");
    for sidecar in [&changed, &other] {
        assert_eq!(decide(sidecar, 1).await["outcome"], "denied");
        assert_eq!(decide(sidecar, 1).await["outcome"], "denied");
        assert_eq!(from(sidecar, "certificate").await, 1.0);
    }
    let body = json!({ "resets": [{ "limit": "per-key", "key": "k" }] });
    post(
        &format!("http://127.0.0.1:{}/v1/reset", changed.admin_port),
        body.to_string(),
    )
    .await;
    assert_eq!(decide(&changed, 1).await["outcome"], "admitted");
    // The other sidecar learns of it when its certificate expires: after `denial_ttl`, a second.
    post(
        &format!("http://127.0.0.1:{}/v1/reset", changed.admin_port),
        body.to_string(),
    )
    .await;
    let asked = std::time::Instant::now();
    sluicegate_tests::process::eventually("the other asks Redis again", async || {
        decide(&other, 1).await["outcome"] == "admitted"
    })
    .await;
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    // A raised limit is a new epoch, and no certificate outlives its epoch.
    assert_eq!(decide(&changed, 1).await["outcome"], "denied");
    std::fs::write(&changed.policy, text.replace("quota: 1,", "quota: 2,")).unwrap();
    sluicegate_tests::process::eventually("the raised limit is in force", async || {
        changed.metric("sluicegate_policy_epoch").await == 2.0
    })
    .await;
    assert_eq!(decide(&changed, 1).await["outcome"], "admitted");
}
