//! `check-store` behind a real Envoy whose `redis_proxy` spreads the keys.

use std::process::Command;

use serde_json::json;
use sluicegate_tests::ask::{PATIENT, policy};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::free_port;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::binary;
use tempfile::TempDir;

/// An Envoy in front of these.
async fn proxy(redis: &[Redis], by_tags: bool, folder: &TempDir) -> Envoy {
    let address =
        |port| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let endpoint = |redis: &Redis| json!({ "endpoint": { "address": address(redis.port()) } });
    let endpoints: Vec<_> = redis.iter().map(endpoint).collect();
    let (port, admin) = (free_port(), free_port());
    let filter = json!({
        "name": "envoy.filters.network.redis_proxy",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy",
            "stat_prefix": "redis",
            "settings": { "op_timeout": "10s", "enable_hashtagging": by_tags },
            "prefix_routes": { "catch_all_route": { "cluster": "redis" } },
        },
    });
    let config = json!({
        "admin": { "address": address(admin) },
        "static_resources": {
            "listeners": [{ "address": address(port), "filter_chains": [{ "filters": [filter] }] }],
            "clusters": [{
                "name": "redis",
                "type": "STATIC",
                "lb_policy": "MAGLEV",
                "load_assignment": { "cluster_name": "redis", "endpoints": [{ "lb_endpoints": endpoints }] },
            }],
        },
    });
    Envoy::start_config(folder.path(), 1, port, admin, &config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_three_upstreams_is_told_and_one_with_one_is_not() {
    for (upstreams, by_tags) in [(3, true), (3, false), (1, true)] {
        let mut redis = Vec::new();
        for _ in 0..upstreams {
            redis.push(Redis::start().await);
        }
        let folder = tempfile::tempdir().unwrap();
        let envoy = proxy(&redis, by_tags, &folder).await;
        let file = folder.path().join("policy.yaml");
        let store = format!("redis://127.0.0.1:{}", envoy.port);
        std::fs::write(&file, policy(store, PATIENT, 10)).unwrap();
        let mut command = Command::new(binary());
        command.args(["check-store", "--policy"]).arg(&file);
        let ran = command.output().unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        let told = out.contains("sharding: error: keys are in several Redis; name one");
        assert_eq!(told, upstreams > 1, "{upstreams}, {by_tags}: {out}");
        assert_eq!(ran.status.code(), Some(i32::from(told)), "{out}");
    }
}
