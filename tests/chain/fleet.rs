//! Two Envoys, a sidecar each, one Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, envoy, plugin};

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_admits_exactly_the_limit_however_many_connections_hit_it() {
    const LIMITS: [u64; 3] = [1, 10, 1_000];
    let redis = Redis::start().await;
    let mut policy = Policy::on(redis.url());
    let mut rules = Vec::new();
    for limit in LIMITS {
        let name = format!("l{limit}");
        policy = policy.window(&name, "sliding_log", limit, "1h");
        let check = json!({ "limit": name, "key": [{ "header": "x-api-key" }] });
        let path = json!({ "path": format!("/{name}") });
        rules.push(
            json!({ "name": name, "match": path, "checks": [check], "when_unavailable": "deny" }),
        );
    }
    let mut fleet = Vec::new();
    for _ in 0..2 {
        let sidecar = Sidecar::alone(&policy.clone().text()).await;
        let envoy = envoy(sidecar.port, plugin(json!(rules))).await;
        fleet.push((sidecar, envoy));
    }
    for limit in LIMITS {
        let admitted = Arc::new(AtomicU64::new(0));
        // 16 connections to each Envoy, three times the limit or more between them.
        let each = (limit * 3 / 32).max(4);
        let mut connections = Vec::new();
        for n in 0..32 {
            let url = fleet[n % 2].1.url(&format!("/l{limit}"));
            let (admitted, client) = (Arc::clone(&admitted), client());
            connections.push(tokio::spawn(async move {
                for _ in 0..each {
                    match status_for(&client, &url, "everyone").await {
                        Some(200) => _ = admitted.fetch_add(1, Ordering::Relaxed),
                        status => assert_eq!(status, Some(429)),
                    }
                }
            }));
        }
        for connection in connections {
            connection.await.unwrap();
        }
        assert_eq!(admitted.load(Ordering::Relaxed), limit);
    }
}
