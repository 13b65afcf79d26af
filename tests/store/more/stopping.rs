//! What others know of a sidecar that stops.

use std::time::Duration;

use sluicegate_tests::ask::{PATIENT, decide, policy};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::super::stopping::stops_within;

#[tokio::test]
async fn a_sidecar_that_is_killed_is_forgotten_while_another_goes_on() {
    let redis = Redis::start().await;
    let text = policy(redis.url(), PATIENT, 9);
    let stays = Sidecar::alone(&text).await;
    let mut killed = Sidecar::alone(&text).await;
    stays.knows_of(2).await;
    killed.kill();
    stays.knows_of(1).await;
    // One of the names is the list's own.
    for (key, expected) in [("sg:{sidecars}:names", 2), ("sg:{sidecars}:ends", 1)] {
        let known: u64 = redis.command(&format!("ZCARD {key}")).await;
        assert_eq!(known, expected, "{key}");
    }
}

/// It said so each second until its last request was answered, and counted as one of those that share the limits for five more.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_stops_does_not_announce_itself_while_a_request_finishes() {
    let cluster = Cluster::start().await;
    let mut sidecar = stops_within("20s", &policy(cluster.url(), "6s", 9)).await;
    let is_announced = async || {
        let keys = cluster.keys().await;
        keys.contains(&"sg:{sidecars}:names".to_owned())
    };
    eventually("it is announced", is_announced).await;
    let home = cluster.owner_of("sidecars").await;
    let key = cluster.tag_elsewhere(home).await;
    let paused = cluster.owner_of(&key).await;
    cluster.pause(paused);
    let (request, ()) = tokio::join!(decide(&sidecar, &key), async {
        // It waits for the paused node by then, which nothing shows, and for some seconds more.
        tokio::time::sleep(Duration::from_secs(2)).await;
        sidecar.signal("TERM");
    });
    assert_eq!(request, "unavailable");
    sidecar.wait().await;
    cluster.resume(paused);
    assert!(!is_announced().await);
}
