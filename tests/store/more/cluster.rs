//! A Cluster whose links are slow, whose nodes are silent, or that fails over.

use std::cell::Cell;
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::ask::{
    PLENTY, decide, is_soon_back, sidecar, stays_unavailable, wait_until_back,
};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::sidecar::Sidecar;

use super::super::cluster::{behind_proxies, store};
use super::away::{clock_behind, one_in_a_window, unlocks};

/// A call takes one round trip and a few answers of Redis: with more, none would be answered within a deadline of three.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_far_away_is_used_within_a_deadline_of_three_round_trips() {
    /// Each way. The other two round trips are for a machine that stalls.
    const SLOW: Duration = Duration::from_millis(400);
    let (_cluster, proxies) = behind_proxies().await;
    for proxy in &proxies {
        proxy.set(Mode::Slow(SLOW));
    }
    let sidecar = sidecar(store(&proxies), "2600ms", PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    // On all nodes.
    for number in 0..6 {
        let key = format!("k{number}");
        assert_eq!(
            decide(&sidecar, &key).await,
            "admitted",
            "{}",
            sidecar.log()
        );
    }
    let opened: u64 = proxies.iter().map(Proxy::accepted).sum();
    assert!(opened < 30, "{opened} connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_silent_node_are_replaced_and_other_nodes_keep_deciding() {
    const ROUNDS: u32 = 40;
    let (cluster, proxies) = behind_proxies().await;
    let sidecar = sidecar(store(&proxies), "500ms", PLENTY).await;
    let owner = cluster.owner_of("victim").await;
    let other = cluster.tag_elsewhere(owner).await;
    wait_until_back(&sidecar, "victim").await;
    wait_until_back(&sidecar, &other).await;
    proxies[owner].set(Mode::Swallow);
    let mut admitted = 0;
    for _ in 0..ROUNDS {
        assert_eq!(decide(&sidecar, "victim").await, "unavailable");
        admitted += u32::from(decide(&sidecar, &other).await == "admitted");
    }
    // All, but where the machine stalls.
    assert!(admitted >= ROUNDS / 2, "{admitted} of {ROUNDS}");
    stays_unavailable(&sidecar, "victim").await;
    proxies[owner].set(Mode::Pass);
    is_soon_back(&sidecar, "victim", "Cluster: a node silent").await;
}

/// The campaign of tests/chaos found it: of a subject's buckets only one was written back after an outage, since the
/// calls for all of them had one mark. The others admitted their quota once more.
#[tokio::test]
async fn what_a_share_admitted_is_written_back_to_every_limit_of_a_subject() {
    const ADMITTED: u64 = 7;
    const TIMEOUT: Duration = Duration::from_millis(500);
    const LIMITS: [&str; 4] = ["a", "b", "c", "d"];
    let cluster = Cluster::start().await;
    let policy = Policy::on(cluster.url()).timeout(&format!("{TIMEOUT:?}"));
    let policy = LIMITS.iter().fold(policy, |policy, name| {
        policy.window(name, "sliding_log", 100, "1h")
    });
    let sidecar = Sidecar::alone(&policy.text()).await;
    let all = LIMITS.map(|limit| json!({ "limit": limit, "key": "k" }));
    sidecar.knows_of(1).await;
    let owner = cluster.owner_of("k").await;
    cluster.pause(owner);
    let admitted = Cell::new(0);
    eventually("the share admits", async || {
        let answer = sidecar.answer(json!([{ "checks": all }])).await;
        let more = u64::from(answer["verdicts"][0]["outcome"] == "admitted");
        admitted.set(admitted.get() + more);
        admitted.get() == ADMITTED
    })
    .await;
    // The deadline of what the node has received without answering: it makes nothing of that when it goes on.
    tokio::time::sleep(TIMEOUT).await;
    cluster.resume(owner);
    sidecar.written_back().await;
    for check in all {
        let answer = sidecar.answer(json!([{ "checks": [check], "peek": true }]));
        let left = answer.await["verdicts"][0]["remaining"].take();
        assert_eq!(left, 100 - ADMITTED, "{check}");
    }
}

/// A promoted replica is another node, of whose clock nothing was known, so that the step was not noticed: the key was locked
/// until its cached denial ended, and for a window after that.
#[tokio::test(flavor = "multi_thread")]
async fn no_denial_outlasts_one_window_after_a_clusters_failover_to_a_clock_behind() {
    let mut cluster = Cluster::start().await;
    let owner = cluster.owner_of("k").await;
    let (clock, _folder) = clock_behind();
    let replica = cluster.add_replica_in(owner, &clock.environment()).await;
    let sidecar = Sidecar::alone(&one_in_a_window(cluster.url())).await;
    wait_until_back(&sidecar, "k").await;
    assert_eq!(decide(&sidecar, "k").await, "denied");
    cluster.fail_over_to(replica).await;
    cluster.promoted(replica).await;
    let (since, count) = (Instant::now(), Cell::new(0));
    // Requests that reach the stores, on all nodes.
    let others = async || {
        count.set(count.get() + 1);
        decide(&sidecar, &count.get().to_string()).await;
    };
    unlocks(&sidecar, since, others).await;
}
