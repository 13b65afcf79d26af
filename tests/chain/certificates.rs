//! Denial certificates: cached denials are repeated without asking Redis, while that is exact.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::process::{eventually, eventually_within};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{self, Policy, decided, envoy, pushed, take, with_rules};

async fn decide(sidecar: &Sidecar, cost: u64) -> Value {
    let check = json!({ "limit": "per-key", "key": "k", "cost": cost });
    support::decide(sidecar, json!({ "checks": [check] })).await
}

async fn from(sidecar: &Sidecar, source: &str) -> u64 {
    decided(sidecar, "per-key", source, "denied").await
}

#[tokio::test]
async fn a_cached_denial_needs_no_redis_and_ends_when_capacity_returns() {
    let redis = Redis::start().await;
    let policy = Policy::on(redis.url())
        .line("denial_ttl: 60s")
        .window("per-key", "sliding_log", 5, "1h")
        .window("short", "sliding_log", 1, "2s");
    let sidecar = Sidecar::alone(&policy.text()).await;
    assert_eq!(decide(&sidecar, 5).await["outcome"], "admitted");
    let first = decide(&sidecar, 1).await;
    assert_eq!(first["outcome"], "denied");
    assert!(
        (30_000..=60_000).contains(&first["hold_ms"].as_u64().unwrap()),
        "{first}"
    );
    let mut before = first["retry_after_ms"].as_u64().unwrap();
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
    assert_eq!(from(&sidecar, "store").await, 1);
    assert_eq!(from(&sidecar, "certificate").await, 50);
    // A certificate is for the decision that was denied, not for another cost.
    assert_eq!(decide(&sidecar, 0).await["outcome"], "admitted");
    // It is not held for longer than the limit denies.
    let denied = loop {
        let verdict = take(&sidecar, "short", "k").await;
        if verdict["outcome"] == "denied" {
            break verdict;
        }
    };
    let retry_ms = denied["retry_after_ms"].as_u64().unwrap();
    assert!(denied["hold_ms"].as_u64().unwrap() <= retry_ms, "{denied}");
    // The sleep is the tested promise itself.
    tokio::time::sleep(Duration::from_millis(retry_ms)).await;
    assert_eq!(take(&sidecar, "short", "k").await["outcome"], "admitted");
}

/// The filter hears of the change although nobody asks it anything meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_limit_ends_its_denials_in_the_filter_and_no_others() {
    let rule = |name: &str| {
        json!({ "name": name, "match": { "path": format!("/{name}") }, "when_unavailable": "deny",
            "checks": [{ "limit": name, "key": [{ "header": "x-api-key" }] }] })
    };
    let text = |quota: u64| {
        let limits = Policy::on("memory").line("denial_ttl: 60s");
        let limits = limits.window("raised", "fixed_window", quota, "30d");
        let text = limits.window("other", "fixed_window", 2, "30d").text();
        with_rules(&text, &json!([rule("raised"), rule("other")]))
    };
    let sidecar = Sidecar::alone(&text(2)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    for path in ["/raised", "/other"] {
        for expected in [200, 200, 429] {
            assert_eq!(envoy.status(path, "alice").await, expected, "{path}");
        }
    }
    let change = async |quota| {
        let before = sidecar.metric("sluicegate_policy_epoch").await;
        std::fs::write(&sidecar.policy, text(quota)).unwrap();
        eventually("the policy is in force", async || {
            sidecar.metric("sluicegate_policy_epoch").await > before
        })
        .await;
    };
    change(4).await;
    // The promise is a second. What is denied from the cache takes nothing.
    eventually_within(Duration::from_secs(3), "the denial has ended", async || {
        envoy.status("/raised", "alice").await == 200
    })
    .await;
    // Three are taken.
    change(3).await;
    assert_eq!(envoy.status("/raised", "alice").await, 429);
    assert_eq!(envoy.status("/other", "alice").await, 429);
    let asked = decided(&sidecar, "other", "store", "denied").await
        + decided(&sidecar, "other", "certificate", "denied").await;
    assert_eq!(asked, 1, "the filter has answered from its cache");
    envoy.is_well().await;
}
