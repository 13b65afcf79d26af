//! Replacing the policy while requests are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_tests::ask::logs;
use sluicegate_tests::client::{client, get, status_for};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Chain, number, policy};

const EPOCH: &str = "sluicegate_policy_epoch";
const IN_FORCE: &str = "sluicegate_policy_last_reload_successful";

#[tokio::test(flavor = "multi_thread")]
async fn a_raised_limit_comes_into_force_and_no_request_is_dropped() {
    let chain = Chain::of("sliding_log", 5, "1h").await;
    for _ in 0..5 {
        assert_eq!(chain.status("/", "alice").await, 200);
    }
    assert_eq!(chain.status("/", "alice").await, 429);
    let go_on = Arc::new(AtomicBool::new(true));
    let mut traffic = Vec::new();
    for n in 0..4 {
        let (url, client, go_on) = (chain.envoy.url("/"), client(), Arc::clone(&go_on));
        traffic.push(tokio::spawn(async move {
            let key = format!("bystander-{n}");
            while go_on.load(Ordering::Relaxed) {
                let status = status_for(&client, &url, &key).await;
                assert!(matches!(status, Some(200 | 429)), "{status:?}");
            }
        }));
    }
    let raised = policy(&chain.redis.url(), "sliding_log", 7, "1h");
    std::fs::write(&chain.sidecar.policy, raised).unwrap();
    eventually("the raised limit admits", async || {
        chain.status("/", "alice").await == 200
    })
    .await;
    // 5 of the 7 were taken before, and still are.
    assert_eq!(chain.status("/", "alice").await, 200);
    let denied = chain.get("/", "alice").await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(&denied, "x-ratelimit-limit"), 7);
    go_on.store(false, Ordering::Relaxed);
    for task in traffic {
        task.await.unwrap();
    }
    assert_eq!(chain.sidecar.metric(EPOCH).await, 2.0);
}

#[tokio::test]
async fn an_invalid_policy_changes_nothing_and_is_reported_until_it_is_fixed() {
    let good = policy("memory", "sliding_log", 5, "1h");
    let sidecar = Sidecar::alone(&good).await;
    for (broken, field) in [
        (good.replace("quota: 5", "quota: -5"), "`quota` is `-5`"),
        (good.replace("algorithm", "algorithmus"), "algorithmus"),
        (
            good.replace("store: memory", "store: redis://127.0.0.1:1"),
            "`store` changed",
        ),
        ("limits: [".to_owned(), "line"),
    ] {
        std::fs::write(&sidecar.policy, broken).unwrap();
        sidecar.reports(field).await;
        let (status, text) = get(&sidecar.admin("/readyz")).await;
        assert!(
            status == 200 && text.contains("policy epoch 1") && text.contains("policy.yaml"),
            "{text}"
        );
        assert_eq!(
            (sidecar.metric(IN_FORCE).await, sidecar.metric(EPOCH).await),
            (0.0, 1.0)
        );
        // A thread of its own writes the log.
        logs(&sidecar, field).await;
    }
    std::fs::write(&sidecar.policy, good.replace("quota: 5", "quota: 6")).unwrap();
    sidecar.reaches(EPOCH, 2.0).await;
    assert_eq!(sidecar.metric(IN_FORCE).await, 1.0);
    assert!(!sidecar.readyz().await.contains("refused"));
}

#[tokio::test]
async fn a_symlink_swap_as_in_kubernetes_and_a_sighup_reload_the_policy() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 5, "1h")).await;
    // A ConfigMap volume: the file is a symlink through `..data`, which is itself a symlink that a rename replaces.
    let volume = sidecar.policy.parent().unwrap().to_owned();
    let publish = |version: &str, quota| {
        let data = volume.join(version);
        std::fs::create_dir(&data).unwrap();
        let text = policy("memory", "sliding_log", quota, "1h");
        std::fs::write(data.join("policy.yaml"), text).unwrap();
        std::os::unix::fs::symlink(version, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    publish("..v1", 6);
    std::os::unix::fs::symlink("..data/policy.yaml", volume.join("link")).unwrap();
    std::fs::rename(volume.join("link"), &sidecar.policy).unwrap();
    sidecar.reaches(EPOCH, 2.0).await;
    publish("..v2", 7);
    sidecar.reaches(EPOCH, 3.0).await;
    // Written to a folder that is not watched, so only SIGHUP reloads it.
    let text = policy("memory", "sliding_log", 8, "1h");
    std::fs::write(volume.join("..v2/policy.yaml"), text).unwrap();
    sidecar.signal("HUP");
    sidecar.reaches(EPOCH, 4.0).await;
}
