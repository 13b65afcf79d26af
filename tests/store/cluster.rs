//! Slow links, cut links, failovers of a Cluster.

use std::sync::Mutex;
use std::time::Duration;

use sluicegate_tests::ask::{PATIENT, decide, sidecar, wait_until_back};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::proxy::{Mode, Proxy};

/// A Cluster whose nodes announce a proxy's port instead of their own.
pub async fn behind_proxies() -> (Cluster, Vec<Proxy>) {
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

pub fn store(proxies: &[Proxy]) -> String {
    let hosts: Vec<_> = proxies
        .iter()
        .map(|proxy| format!("127.0.0.1:{}", proxy.port))
        .collect();
    format!("redis+cluster://{}", hosts.join(","))
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
