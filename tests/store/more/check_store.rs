//! `check-store` behind a real Envoy whose `redis_proxy` spreads the keys.

use std::process::Command;

use sluicegate_tests::ask::{PATIENT, policy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::redis_proxy::redis_proxy;
use sluicegate_tests::sidecar::binary;

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_three_upstreams_is_told_and_one_with_one_is_not() {
    for (upstreams, by_tags) in [(3, true), (3, false), (1, true)] {
        let mut redis = Vec::new();
        for _ in 0..upstreams {
            redis.push(Redis::start().await);
        }
        let folder = tempfile::tempdir().unwrap();
        let ports: Vec<_> = redis.iter().map(Redis::port).collect();
        let envoy = redis_proxy(folder.path(), &ports, by_tags).await;
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
