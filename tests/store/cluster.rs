//! Slow links, cut links, failovers of a Cluster.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, is_soon_back, sidecar, stays_unavailable, wait_until_back,
};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::sidecar::Sidecar;

use super::away::{clock_behind, one_in_a_window, unlocks};

/// A Cluster whose nodes announce a proxy's port instead of their own.
async fn behind_proxies() -> (Cluster, Vec<Proxy>) {
    let proxies = Mutex::new(Vec::new());
    let cluster = Cluster::start_with(async |port| {
        let proxy = Proxy::start(port).await;
        let words = [
            "--cluster-announce-ip".to_owned(),
            "127.0.0.1".to_owned(),
            "--cluster-announce-port".to_owned(),
            proxy.port.to_string(),
            "--cluster-announce-bus-port".to_owned(),
            (port + 10_000).to_string(),
        ];
        proxies.lock().unwrap().push(proxy);
        words.to_vec()
    })
    .await;
    (cluster, proxies.into_inner().unwrap())
}

fn store(proxies: &[Proxy]) -> String {
    let hosts: Vec<_> = proxies
        .iter()
        .map(|proxy| format!("127.0.0.1:{}", proxy.port))
        .collect();
    format!("redis+cluster://{}", hosts.join(","))
}

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
async fn a_call_whose_answer_was_lost_is_not_sent_again() {
    let (_cluster, proxies) = behind_proxies().await;
    let sidecar = sidecar(store(&proxies), PATIENT, 2).await;
    let all_answer = async || {
        for number in 0..9 {
            wait_until_back(&sidecar, &format!("warm{number}")).await;
        }
    };
    all_answer().await;
    for proxy in &proxies {
        proxy.set(Mode::CutAfter("{k}:"));
    }
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    let cuts: u64 = proxies.iter().map(Proxy::cut).sum();
    assert_eq!(cuts, 1, "it was sent again");
    for proxy in &proxies {
        proxy.set(Mode::Pass);
    }
    all_answer().await;
    // One unit of two is gone, not both.
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert_eq!(decide(&sidecar, "k").await, "denied");
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

#[tokio::test]
async fn the_documented_acl_with_its_additions_suffices_on_a_cluster() {
    let cluster = Cluster::start().await;
    let acl = sluicegate_tests::ask::documented_acl()
        .replace(" +role +select", " +cluster|slots +asking");
    for port in cluster.ports() {
        let client = redis::Client::open(("127.0.0.1", port)).unwrap();
        let mut node = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd("ACL");
        command.arg(acl.split(' ').skip(1).collect::<Vec<_>>());
        let _: () = command.query_async(&mut node).await.unwrap();
    }
    let url = cluster.url().replace("://", "://sluicegate:secret@");
    let sidecar = sidecar(url, PATIENT, 2).await;
    for number in 0..30 {
        let key = format!("k{number}");
        let outcomes = [decide(&sidecar, &key).await, decide(&sidecar, &key).await];
        assert_eq!(outcomes, ["admitted", "admitted"], "{}", sidecar.log());
    }
    // A slot that is being migrated needs ASKING.
    let slot = cluster.slot("k0").await;
    let from = cluster.owner(slot).await;
    let moving = cluster.migrate(slot, (from + 1) % 3, Duration::from_millis(200));
    let asked = async {
        loop {
            assert_eq!(decide(&sidecar, "k0").await, "denied", "{}", sidecar.log());
        }
    };
    tokio::select! {
        () = moving => {}
        () = asked => {}
    }
}

#[tokio::test]
async fn slots_that_move_are_followed() {
    let cluster = Cluster::start().await;
    let sidecar = sidecar(cluster.url(), PATIENT, 3).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    let slot = cluster.slot("k").await;
    let from = cluster.owner(slot).await;
    cluster
        .migrate(slot, (from + 1) % 3, Duration::from_millis(50))
        .await;
    for outcome in ["admitted", "admitted", "denied"] {
        assert_eq!(decide(&sidecar, "k").await, outcome, "{}", sidecar.log());
    }
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
