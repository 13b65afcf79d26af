//! Sidecars on a real Redis Cluster of three nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get, post};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

const PATIENCE: &str = "store_timeout: 3s";

/// `narrow` and `wide`, each of two windows; the subjects below are in different slots.
fn policy(cluster: &Cluster, narrow: u64, wide: u64) -> String {
    let limit = |name: &str, quota: u64| {
        format!(
            "  {name}:\n    algorithm: sliding_log\n    windows: [{{ quota: {quota}, per: 1h }}, {{ quota: {quota}, per: 2h }}]\n"
        )
    };
    let limits = limit("narrow", narrow) + &limit("wide", wide);
    format!("store: {}\n{PATIENCE}\nlimits:\n{limits}", cluster.url())
}

fn check(limit: &str, key: &str) -> Value {
    json!({ "limit": limit, "key": key })
}

async fn decide(client: &reqwest::Client, port: u16, checks: Value, peek: bool) -> Value {
    let body = json!({ "decisions": [{ "checks": checks, "peek": peek }] });
    let url = format!("http://127.0.0.1:{port}/v1/decide");
    let answer = client
        .post(url)
        .body(body.to_string())
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["verdicts"][0].clone()
}

/// A sidecar that is ready: on a Cluster the client first has to load the slot map.
async fn sidecar(policy: &str, folder: &std::path::Path) -> Sidecar {
    let sidecar = Sidecar::start(policy, folder).await;
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    eventually("the sidecar knows the cluster", async || {
        get(&ready).await.1.contains("the store answers")
    })
    .await;
    sidecar
}

#[tokio::test]
async fn a_denial_in_one_slot_gives_back_what_was_taken_in_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let sidecar = sidecar(&policy(&cluster, 2, 10), folder.path()).await;
    let (client, port) = (client(), sidecar.port);
    let keys = ["alice", "bob", "carol"];
    let mut slots = Vec::new();
    for key in keys {
        slots.push(cluster.slot(key).await);
    }
    slots.dedup();
    assert_eq!(
        slots.len(),
        3,
        "the subjects of this test are in different slots"
    );
    let both = json!([
        check("wide", "alice"),
        check("narrow", "bob"),
        check("wide", "carol")
    ]);
    for n in 0..2 {
        assert_eq!(
            decide(&client, port, both.clone(), false).await["outcome"],
            "admitted",
            "{n}"
        );
    }
    for _ in 0..20 {
        let denied = decide(&client, port, both.clone(), false).await;
        assert_eq!(
            (&denied["outcome"], &denied["limit"]),
            (&json!("denied"), &json!("narrow"))
        );
        let retry_after_ms = denied["retry_after_ms"].as_u64().unwrap();
        assert!(
            (7_100_000..=7_200_000).contains(&retry_after_ms),
            "the last window has room: {denied}"
        );
    }
    for key in ["alice", "carol"] {
        let look = decide(&client, port, json!([check("wide", key)]), true).await;
        // 2 were admitted, and the peek answers as if it took another one.
        assert_eq!(look["remaining"], 8, "{key}: {look}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_over_several_slots_are_never_over() {
    const LIMIT: u64 = 100;
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, LIMIT, LIMIT * 2);
    let sidecars = [
        sidecar(&policy, folder.path()).await,
        sidecar(&policy, folder.path()).await,
    ];
    let admitted = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for worker in 0..12 {
        let (client, port, admitted) = (client(), sidecars[worker % 2].port, Arc::clone(&admitted));
        workers.push(tokio::spawn(async move {
            for n in 0..40 {
                let wide = format!("wide-{}", (worker + n) % 5);
                let checks = json!([check("wide", &wide), check("narrow", "everyone")]);
                match decide(&client, port, checks, false).await["outcome"].as_str() {
                    Some("admitted") => admitted.fetch_add(1, Ordering::Relaxed),
                    Some("denied") => 0,
                    other => panic!("{other:?}"),
                };
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    // 480 decisions for 100 units: what is given back is never admitted twice.
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT);
    // What was given back is available again: each `wide` holds what was admitted and no more.
    let mut used = 0;
    for n in 0..5 {
        let look = json!([{ "limit": "wide", "key": format!("wide-{n}"), "cost": 0 }]);
        let look = decide(&client(), sidecars[0].port, look, false).await;
        used += LIMIT * 2 - look["remaining"].as_u64().unwrap();
    }
    assert_eq!(used, LIMIT);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrating_slot_loses_nothing() {
    const LIMIT: u64 = 300;
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let sidecar = sidecar(&policy(&cluster, LIMIT, LIMIT), folder.path()).await;
    let slot = cluster.slot("alice").await;
    let admitted = Arc::new(AtomicU64::new(0));
    let moving = Arc::new(AtomicBool::new(true));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let (client, port) = (client(), sidecar.port);
        let (admitted, moving) = (Arc::clone(&admitted), Arc::clone(&moving));
        workers.push(tokio::spawn(async move {
            let mut denied = 0;
            // Continue until the slot has moved and the limit is reached.
            while moving.load(Ordering::Relaxed) || denied == 0 {
                match decide(&client, port, json!([check("narrow", "alice")]), false).await["outcome"].as_str() {
                    Some("admitted") => {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                    Some("denied") => denied += 1,
                    other => panic!("{other:?} while the slot moves"),
                }
            }
        }));
    }
    let owner = cluster.owner(slot).await;
    // The keys of both windows migrate, with a pause between them in which the slot is on two nodes.
    for to in [(owner + 1) % 3, (owner + 2) % 3, owner] {
        cluster.migrate(slot, to, Duration::from_millis(30)).await;
    }
    moving.store(false, Ordering::Relaxed);
    for worker in workers {
        worker
            .await
            .unwrap_or_else(|error| panic!("{error}: {}", sidecar.log()));
    }
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT);
}

/// Subjects by node, this many on each.
async fn subjects_by_node(cluster: &Cluster, each: usize) -> Vec<Vec<String>> {
    let mut by_node = vec![Vec::new(); 3];
    for n in 0.. {
        if by_node.iter().all(|subjects| subjects.len() == each) {
            break;
        }
        let subject = format!("subject-{n}");
        let owner = cluster.owner_of(&subject).await;
        if by_node[owner].len() < each {
            by_node[owner].push(subject);
        }
    }
    by_node
}

#[tokio::test]
async fn a_share_for_a_dead_nodes_subjects_leaves_the_others_to_the_store() {
    const NEVER: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, NEVER, NEVER).replace(PATIENCE, "store_timeout: 200ms");
    let sidecar = sidecar(&policy, folder.path()).await;
    let by_node = subjects_by_node(&cluster, 2).await;
    sidecar.knows_of(1).await;
    cluster.pause(2);
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let asked = [
        &by_node[2][0],
        &by_node[0][0],
        &by_node[2][1],
        &by_node[1][0],
    ];
    let asked = asked.map(|subject| json!({ "checks": [check("wide", subject)] }));
    let body = json!({ "decisions": asked }).to_string();
    let admitted_by = async |source: &str| {
        let labels = format!("limit=\"wide\",source=\"{source}\",verdict=\"admitted\"");
        let name = format!("sluicegate_decisions_total{{{labels}}}");
        sidecar.metric(&name).await
    };
    eventually("its share decides for the dead node", async || {
        post(&url, body.clone()).await;
        admitted_by("share").await >= 2.0
    })
    .await;
    let (share, store) = (admitted_by("share").await, admitted_by("store").await);
    for _ in 0..10 {
        let (_, answer) = post(&url, body.clone()).await;
        assert!(!answer.contains("unavailable"), "{answer}");
    }
    let (share, store) = (
        admitted_by("share").await - share,
        admitted_by("store").await - store,
    );
    assert_eq!((share, store), (20.0, 20.0));
}

/// The other node answered, so the decision was *unavailable* for as long as the outage lasted: the shares looked at their
/// own buckets only.
#[tokio::test]
async fn a_dead_nodes_limit_that_allows_leaves_the_rest_of_a_decision_to_its_share() {
    const NEVER: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, NEVER, NEVER)
        .replace(PATIENCE, "store_timeout: 200ms")
        .replace("narrow:", "narrow:\n    when_store_is_down: allow");
    let sidecar = sidecar(&policy, folder.path()).await;
    let by_node = subjects_by_node(&cluster, 1).await;
    sidecar.knows_of(1).await;
    let (client, port) = (client(), sidecar.port);
    let of_dead = check("narrow", &by_node[2][0]);
    let mut of_other = check("wide", &by_node[0][0]);
    cluster.pause(2);
    eventually("the node counts as down", async || {
        decide(&client, port, json!([of_dead]), false).await["then"] == "allow"
    })
    .await;
    for _ in 0..10 {
        let verdict = decide(&client, port, json!([of_dead, of_other]), false).await;
        assert_eq!(
            (&verdict["outcome"], &verdict["limit"]),
            (&json!("admitted"), &json!("wide")),
            "{verdict}"
        );
    }
    eventually("the other node knows of them", async || {
        sidecar.metric("sluicegate_unwritten_buckets").await == 0.0
    })
    .await;
    of_other["cost"] = json!(0);
    let look = decide(&client, port, json!([of_other]), false).await;
    assert_eq!(look["remaining"], NEVER - 10, "{look}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_node_delays_only_its_own_subjects() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    const NEVER: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, NEVER, NEVER)
        .replace(PATIENCE, "store_timeout: 1s")
        // Otherwise a share of the limit would decide.
        .replace("algorithm:", "when_store_is_down: deny\n    algorithm:");
    let sidecar = sidecar(&policy, folder.path()).await;
    let mut by_node = subjects_by_node(&cluster, 3).await;
    let still = by_node.pop().unwrap();
    let well = by_node.concat();
    for subject in well.iter().chain(&still) {
        let checks = json!([check("wide", subject)]);
        let verdict = decide(&client(), sidecar.port, checks, false).await;
        assert_eq!(verdict["outcome"], "admitted");
    }
    cluster.pause(2);
    // Waiting for the node: its own subjects, and a decision that needs it and another node.
    let mut waiting: Vec<_> = still.iter().map(|s| json!([check("wide", s)])).collect();
    waiting.push(json!([check("wide", &well[0]), check("wide", &still[0])]));
    let go_on = Arc::new(AtomicBool::new(true));
    let start = |checks: Value, expected: &'static str| {
        let (client, port, go_on) = (client(), sidecar.port, Arc::clone(&go_on));
        tokio::spawn(async move {
            let mut took = Vec::new();
            while go_on.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let verdict = decide(&client, port, checks.clone(), false).await;
                took.push(asked.elapsed());
                assert_eq!(verdict["outcome"], expected, "{checks}");
            }
            took
        })
    };
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|c| start(c, "unavailable"))
        .collect();
    let others: Vec<_> = well
        .iter()
        .map(|s| start(json!([check("wide", s)]), "admitted"))
        .collect();
    eventually("the page of metrics says so", async || {
        sidecar.metric("sluicegate_store_up").await == 0.0
    })
    .await;
    // Long enough for every waiting decision to wait several times.
    tokio::time::sleep(TIMEOUT * 4).await;
    // The lanes that succeed do not hide the one that fails.
    assert_eq!(sidecar.metric("sluicegate_store_up").await, 0.0);
    // One caller's decisions on all nodes: the answers are in the caller's order.
    let asked: Vec<_> = [&still[1], &well[0], &still[2], &well[5]]
        .iter()
        .map(|subject| json!({ "checks": [check("wide", subject)] }))
        .collect();
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let (_, answer) = post(&url, json!({ "decisions": asked }).to_string()).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let outcomes: Vec<_> = answer["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| &v["outcome"])
        .collect();
    assert_eq!(
        outcomes,
        ["unavailable", "admitted", "unavailable", "admitted"]
    );
    go_on.store(false, Ordering::Relaxed);
    for worker in waiting {
        let took = worker.await.unwrap();
        // The call in flight, its own call, and stalls of this machine.
        assert!(took.iter().all(|took| *took < TIMEOUT * 3), "{took:?}");
    }
    for worker in others {
        let mut took = worker.await.unwrap();
        took.sort();
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        println!(
            "{} decisions, median {median:?}, longest {longest:?}",
            took.len()
        );
        assert!(median < TIMEOUT / 4, "{median:?}");
    }
    cluster.resume(2);
    // Without traffic for that node, the sidecar notices that it is back.
    eventually("the store is up", async || {
        sidecar.metric("sluicegate_store_up").await == 1.0
    })
    .await;
    for subject in well.iter().chain(&still) {
        let checks = json!([check("wide", subject)]);
        let verdict = decide(&client(), sidecar.port, checks, false).await;
        assert_eq!(verdict["outcome"], "admitted", "{subject}");
    }
}
