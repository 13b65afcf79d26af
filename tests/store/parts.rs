//! A store that serves some of the keys: a single one is refused as a whole, since the limits of the other keys would not hold
//! and nobody would know; a Cluster loses that part alone, and it is told in the same places.

use sluicegate_tests::ask::{PATIENT, PLENTY, decide, documented_acl, logs, policy, sidecar};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// Nothing is up: not for a moment, however often Redis is probed meanwhile.
async fn stays_refused(sidecar: &Sidecar, why: &str) {
    for number in 0..30 {
        assert_eq!(sidecar.metric("sluicegate_store_up").await, 0.0);
        let outcome = decide(sidecar, &format!("k{number}")).await;
        assert_eq!(outcome, "unavailable", "k{number}");
        let text = sidecar.readyz().await;
        assert!(text.contains(why), "{text}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(!sidecar.log().contains("is back after"));
}

/// P6: a third of the keys counted, the others passed with `allow`, and `/readyz` said that the store answers.
#[tokio::test(flavor = "multi_thread")]
async fn one_node_of_a_cluster_is_refused_as_a_whole_and_told() {
    let cluster = Cluster::start().await;
    for port in cluster.ports() {
        let url = format!("redis://127.0.0.1:{port}");
        let sidecar = sidecar(url, PATIENT, PLENTY).await;
        let why = "it is a node of a Cluster, which serves only some keys: use `redis+cluster://`";
        sidecar.reports(why).await;
        logs(&sidecar, why).await;
        stays_refused(&sidecar, why).await;
    }
}

/// Whoever asks for a key that is refused finds it out for all, until the ACL has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_refuses_a_key_is_down_until_it_serves_that_key() {
    let redis = Redis::start().await;
    let keys = "~sg:{k* ~sg:{p* ~sg:{a* ~sg:{m* ~sg:{s* ~sg:{o*";
    let acl = documented_acl();
    let _: () = redis.command(&acl.replace("~sg:*", keys)).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    let shared = policy(&store, PATIENT, PLENTY).replace("deny", "share");
    let [denying, sharing] = [policy(&store, PATIENT, PLENTY), shared];
    let (denying, sharing) = (
        Sidecar::alone(&denying).await,
        Sidecar::alone(&sharing).await,
    );
    sharing.knows_of(2).await;
    for sidecar in [&denying, &sharing] {
        eventually("a key is served", async || {
            decide(sidecar, "k0").await == "admitted"
        })
        .await;
        assert_eq!(decide(sidecar, "z").await, "unavailable");
    }
    let why = "permissions to access";
    denying.reports(why).await;
    logs(&denying, why).await;
    stays_refused(&denying, why).await;
    // Also of what Redis would serve, and of what it would not.
    for key in ["k0", "z"] {
        eventually("its share decides", async || {
            decide(&sharing, key).await == "admitted"
        })
        .await;
    }
    assert_eq!(sharing.metric("sluicegate_store_up").await, 0.0);
    let _: () = redis.command(&acl).await;
    for sidecar in [&denying, &sharing] {
        sidecar.reaches("sluicegate_store_up", 1.0).await;
        assert_eq!(decide(sidecar, "z").await, "admitted");
    }
    logs(&denying, "the store is back after").await;
}

/// A client may have chosen the key: nobody else is concerned.
#[tokio::test]
async fn a_key_that_holds_something_else_concerns_itself_alone() {
    let redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    sidecar.reaches("sluicegate_store_up", 1.0).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    let key = redis.keys().await.remove(0);
    for other in ["SET {} 1", "LPUSH {} 1", "ZADD {} 1 m", "HSET {} h v"] {
        let _: i64 = redis.command(&format!("DEL {key}")).await;
        let _: redis::Value = redis.command(&other.replace("{}", &key)).await;
        for _ in 0..5 {
            assert_eq!(decide(&sidecar, "k").await, "unavailable", "{other}");
            assert_eq!(decide(&sidecar, "another").await, "admitted", "{other}");
            assert_eq!(sidecar.metric("sluicegate_store_up").await, 1.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_serves_is_told_and_concerns_its_own_keys() {
    let cluster = Cluster::start_with(async |_| {
        ["--cluster-require-full-coverage", "no"]
            .map(str::to_owned)
            .to_vec()
    })
    .await;
    let sidecar = sidecar(cluster.url(), PATIENT, PLENTY).await;
    sidecar.reaches("sluicegate_store_up", 1.0).await;
    let slot = cluster.slot("lost").await;
    for port in cluster.ports() {
        let mut one = sluicegate_tests::redis::connect(port).await.unwrap();
        let mut forget = redis::cmd("CLUSTER");
        forget.arg("DELSLOTS").arg(slot);
        let _: () = forget.query_async(&mut one).await.unwrap();
    }
    let why =
        "part of the Cluster: cannot reach Redis: no node of the Cluster serves 1 of its slots";
    sidecar.reports(why).await;
    logs(&sidecar, why).await;
    assert_eq!(sidecar.metric("sluicegate_store_up").await, 0.0);
    assert_eq!(decide(&sidecar, "lost").await, "unavailable");
    for number in 0..20 {
        assert_eq!(decide(&sidecar, &format!("k{number}")).await, "admitted");
    }
}
