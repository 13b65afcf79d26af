//! Two Envoys, a sidecar each, one Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;

use super::support::{per_key, plugin, policy};

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_admits_exactly_the_limit_however_many_connections_hit_it() {
    for limit in [1, 10, 1_000] {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start().await;
        let upstream = upstream::start().await;
        let mut fleet = Vec::new();
        for _ in 0..2 {
            let sidecar = Sidecar::start(
                &policy(&redis.url(), "sliding_log", limit, "1h"),
                folder.path(),
            )
            .await;
            let envoy = Envoy::asking(sidecar.port)
                .upstream(upstream)
                .plugin(plugin(per_key("deny")))
                .start(folder.path())
                .await;
            fleet.push((sidecar, envoy));
        }
        let admitted = Arc::new(AtomicU64::new(0));
        let denied = Arc::new(AtomicU64::new(0));
        // 16 connections to each Envoy, three times the limit or more between them.
        let each = (limit * 3 / 32).max(4);
        let mut connections = Vec::new();
        for n in 0..32 {
            let url = fleet[n % 2].1.url("/");
            let (admitted, denied, client) = (Arc::clone(&admitted), Arc::clone(&denied), client());
            connections.push(tokio::spawn(async move {
                for _ in 0..each {
                    let answer = client
                        .get(&url)
                        .header("x-api-key", "everyone")
                        .send()
                        .await
                        .unwrap();
                    match answer.status().as_u16() {
                        200 => admitted.fetch_add(1, Ordering::Relaxed),
                        429 => denied.fetch_add(1, Ordering::Relaxed),
                        other => panic!("status {other}"),
                    };
                }
            }));
        }
        for connection in connections {
            connection.await.unwrap();
        }
        assert_eq!(admitted.load(Ordering::Relaxed), limit, "admitted");
        assert_eq!(denied.load(Ordering::Relaxed), 32 * each - limit, "denied");
    }
}
