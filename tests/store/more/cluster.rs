//! A Cluster whose links are slow, whose nodes are silent, or that fails over.

use std::cell::Cell;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, is_soon_back, logs, sidecar, stays_unavailable, wait_until_back,
};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::sidecar::Sidecar;

use super::super::cluster::{Keys, Opened, behind_proxies, store, take};
use super::away::{clock_behind, one_in_a_window, unlocks};

const ALGORITHMS: [&str; 4] = [
    "sliding_log",
    "sliding_window",
    "fixed_window",
    "token_bucket",
];

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

/// Wherever the keys are; and what was taken meanwhile can be returned after the move.
#[tokio::test]
async fn an_open_slot_decides_wherever_its_keys_are() {
    for keys in [Keys::Nowhere, Keys::Source, Keys::Target, Keys::Apart] {
        let opened = Opened::with(&ALGORITHMS, keys).await;
        let mut receipts = Vec::new();
        for algorithm in ALGORITHMS {
            receipts.push((algorithm, opened.decides(algorithm).await));
        }
        opened.closes(&receipts).await;
    }
}

/// It is in no map of slots until the first slot is its own.
#[tokio::test]
async fn a_slot_that_is_open_to_a_new_node_decides() {
    let mut cluster = Cluster::start().await;
    let new = cluster.add(0, &[]).await;
    let sidecar = sidecar(cluster.url(), "500ms", 2).await;
    wait_until_back(&sidecar, "other").await;
    let open = cluster.open(cluster.slot("k").await, new).await;
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        outcomes.push(decide(&sidecar, "k").await);
    }
    assert_eq!(
        outcomes,
        ["admitted", "admitted", "denied"],
        "{}",
        sidecar.log()
    );
    open.close().await;
}

#[tokio::test]
async fn what_one_end_of_an_open_slot_took_is_given_back_if_the_other_end_does_not_answer() {
    let opened = Opened::with(&["sliding_log"], Keys::Apart).await;
    let outcome = async |cost| {
        let verdicts = take(&opened.sidecar, &[("sliding_log", "k", cost)]).await;
        verdicts[0]["outcome"].as_str().unwrap().to_owned()
    };
    opened.cluster.pause(opened.target);
    assert_eq!(outcome(2).await, "unavailable");
    opened.cluster.resume(opened.target);
    // All that was left; what the node makes of the call now is too late.
    eventually("both ends answer", async || match &*outcome(4).await {
        "unavailable" => false,
        other => {
            assert_eq!(other, "admitted", "{}", opened.sidecar.log());
            true
        }
    })
    .await;
    assert_eq!(outcome(1).await, "denied");
}

/// Announcements had no ASK followed, and nobody was told: each outage that began in that time found no sidecar with a share.
#[tokio::test]
async fn sidecars_and_overrides_are_found_in_an_open_slot() {
    let cluster = Cluster::start().await;
    let sidecar = sidecar(cluster.url(), PATIENT, 3).await;
    sidecar.knows_of(1).await;
    let put = async |key: &str| {
        let body = json!({ "limit": "per-key", "key": key, "blocked": true });
        sidecar.change_override(Method::PUT, body.to_string()).await
    };
    assert_eq!(put("before").await.0, 200);
    let mut opened = Vec::new();
    for tag in ["sidecars", "overrides"] {
        let slot = cluster.slot(tag).await;
        let from = cluster.owner(slot).await;
        let open = cluster.open(slot, (from + 1) % 3).await;
        for key in open.keys().await {
            open.carry(&key).await;
        }
        opened.push(open);
    }
    assert_eq!(put("during").await.0, 200);
    let second = self::sidecar(cluster.url(), PATIENT, 3).await;
    second.knows_of(2).await;
    sidecar.knows_of(2).await;
    for key in ["before", "during"] {
        eventually("it is blocked", async || {
            decide(&second, key).await == "denied"
        })
        .await;
    }
}

/// Redis answers no call of several keys that are apart, and the announcement is one.
#[tokio::test]
async fn a_sidecar_that_cannot_announce_itself_says_so() {
    let cluster = Cluster::start().await;
    let first = sidecar(cluster.url(), PATIENT, 3).await;
    first.knows_of(1).await;
    let slot = cluster.slot("sidecars").await;
    let from = cluster.owner(slot).await;
    let open = cluster.open(slot, (from + 1) % 3).await;
    open.carry("sg:{sidecars}:ends").await;
    let second = sidecar(cluster.url(), PATIENT, 3).await;
    logs(&second, "not all keys of the call are at one node").await;
    assert_eq!(second.metric("sluicegate_sidecars").await, 0.0);
    open.close().await;
    second.knows_of(2).await;
}
