//! Denial certificates: cached denials are repeated without asking Redis, while that is exact.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{self, Policy, decided, take};

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
