//! Slow links, cut links, failovers of a Cluster.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::ask::{PATIENT, decide, sidecar, wait_until_back};
use sluicegate_tests::client::post;
use sluicegate_tests::cluster::{Cluster, OpenSlot};
use sluicegate_tests::policy::Policy;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::sidecar::Sidecar;

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

/// Where the keys of a subject are whose slot is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    Nowhere,
    Source,
    Target,
    Apart,
}

/// A limit of two windows for each of these algorithms, named after it, of which a subject has taken some units or none;
/// and its slot, left open.
pub struct Opened {
    pub cluster: Cluster,
    pub sidecar: Sidecar,
    slot: OpenSlot,
    /// The node that it moves to.
    pub target: usize,
    taken: u64,
}

const QUOTA: u64 = 5;

impl Opened {
    pub async fn with(algorithms: &[&str], keys: Keys) -> Self {
        let cluster = Cluster::start().await;
        let windows = format!("[{{ quota: {QUOTA}, per: 1h }}, {{ quota: {QUOTA}, per: 366d }}]");
        let policy = algorithms
            .iter()
            .fold(Policy::on(cluster.url()), |policy, name| {
                policy.limit(name, &format!("algorithm: {name}, windows: {windows}"))
            });
        let sidecar = Sidecar::alone(&policy.text()).await;
        sidecar.reports("the store answers").await;
        let taken = u64::from(keys != Keys::Nowhere);
        for limit in algorithms.iter().take(taken as usize * algorithms.len()) {
            let verdicts = take(&sidecar, &[(limit, "k", taken)]).await;
            assert_eq!(verdicts[0]["outcome"], "admitted");
        }
        let number = cluster.slot("k").await;
        let target = (cluster.owner(number).await + 1) % 3;
        let slot = cluster.open(number, target).await;
        for key in slot.keys().await {
            if keys == Keys::Target || keys == Keys::Apart && key.contains(":3600000ms") {
                slot.carry(&key).await;
            }
        }
        Self {
            cluster,
            sidecar,
            slot,
            target,
            taken,
        }
    }

    /// Takes, is denied, gives back, and takes exactly what is left; the receipt of the last unit.
    pub async fn decides(&self, limit: &str) -> Value {
        let (sidecar, left) = (&self.sidecar, QUOTA - self.taken);
        let owner = self.cluster.owner_of("k").await;
        let other = self.cluster.tag_elsewhere(owner).await;
        let ours = [(limit, "k", 3), (limit, "k", 3), (limit, "k", 1)];
        let theirs = [(limit, &*other, 0)];
        let (mut verdicts, beside) = tokio::join!(take(sidecar, &ours), take(sidecar, &theirs));
        let outcomes = |verdicts: &[Value]| -> Vec<String> {
            let outcome = |verdict: &Value| verdict["outcome"].as_str().unwrap().to_owned();
            verdicts.iter().map(outcome).collect()
        };
        let log = || sidecar.log();
        let expected = ["admitted", "denied", "admitted"];
        assert_eq!(outcomes(&verdicts), expected, "{limit}: {}", log());
        assert_eq!(outcomes(&beside), ["admitted"], "{limit}");
        assert!(verdicts[1]["retry_after_ms"].as_u64() > Some(0), "{limit}");
        assert_eq!(verdicts[2]["remaining"], left - 4, "{limit}: {verdicts:?}");
        let receipt = verdicts[0]["receipt"][0].take();
        for units in [Some(3), None] {
            let returned = give_back(sidecar, limit, &receipt).await;
            assert_eq!(returned, units, "{limit}: {}", log());
        }
        let one_each = vec![(limit, "k", 1); QUOTA as usize];
        let mut verdicts = take(sidecar, &one_each).await;
        let admitted = outcomes(&verdicts)
            .iter()
            .filter(|o| *o == "admitted")
            .count();
        assert_eq!(admitted as u64, left - 1, "{limit}: {verdicts:?}");
        let last = admitted.checked_sub(1).unwrap();
        verdicts[last]["receipt"][0].take()
    }

    /// After [`Self::decides`], with the receipts of the last units that it took: they return them after the move.
    pub async fn closes(self, receipts: &[(&str, Value)]) {
        self.slot.close().await;
        for (limit, receipt) in receipts {
            let returned = give_back(&self.sidecar, limit, receipt).await;
            assert_eq!(returned, Some(1), "{limit}");
            let verdicts = take(&self.sidecar, &[(limit, "k", 1), (limit, "k", 1)]).await;
            let outcomes = [&verdicts[0]["outcome"], &verdicts[1]["outcome"]];
            assert_eq!(outcomes, ["admitted", "denied"], "{limit}");
        }
    }
}

/// Takes so many units of each limit and key, with receipts; the verdicts.
pub async fn take(sidecar: &Sidecar, checks: &[(&str, &str, u64)]) -> Vec<Value> {
    let decision = |(limit, key, cost): &(&str, &str, u64)| {
        let check = json!({ "limit": limit, "key": key, "cost": cost });
        json!({ "checks": [check], "receipt": true })
    };
    let decisions: Vec<_> = checks.iter().map(decision).collect();
    let mut answer = sidecar.answer(decisions.into()).await;
    serde_json::from_value(answer["verdicts"].take()).unwrap()
}

/// Settles with nothing used; how many units came back.
async fn give_back(sidecar: &Sidecar, limit: &str, receipt: &Value) -> Option<u64> {
    let entry = json!({ "limit": limit, "key": "k", "receipt": receipt, "units": 0 });
    let body = json!({ "settles": [entry] }).to_string();
    let (_, answer) = post(&sidecar.url("/v1/settle"), body).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["outcomes"][0]["units"].as_u64()
}

/// Redis answers TRYAGAIN at both ends to a call of several keys of which one is not there, and a new subject has none:
/// each of its decisions was *unavailable* for as long as the slot was open.
#[tokio::test]
async fn a_new_subject_is_decided_while_its_slot_is_open() {
    let opened = Opened::with(&["sliding_log"], Keys::Nowhere).await;
    opened.decides("sliding_log").await;
}
