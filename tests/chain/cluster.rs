//! Sidecars on a real Redis Cluster of three nodes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, check, decide, decide_all, decided, left, peek};

/// The quota of a limit that no test uses up.
const NEVER: u64 = 1_000_000;

/// `narrow` and `wide`, each of two windows and with these further fields; the subjects below are in different slots.
fn policy(cluster: &Cluster, limits: [(u64, &str); 2]) -> Policy {
    let mut policy = Policy::on(cluster.url()).timeout("3s");
    for (name, (quota, more)) in ["narrow", "wide"].into_iter().zip(limits) {
        let windows = format!("{{ quota: {quota}, per: 1h }}, {{ quota: {quota}, per: 2h }}");
        let fields = format!("algorithm: sliding_log, windows: [{windows}]{more}");
        policy = policy.limit(name, &fields);
    }
    policy
}

async fn take(sidecar: &Sidecar, checks: Value) -> Value {
    decide(sidecar, json!({ "checks": checks })).await
}

/// A sidecar that is ready: on a Cluster the client first has to load the slot map.
async fn sidecar(policy: Policy) -> Sidecar {
    let sidecar = Sidecar::alone(&policy.text()).await;
    sidecar.reports("the store answers").await;
    sidecar
}

#[tokio::test]
async fn a_denial_in_one_slot_gives_back_what_was_taken_in_the_others() {
    let cluster = Cluster::start().await;
    let sidecar = sidecar(policy(&cluster, [(2, ""), (10, "")])).await;
    let mut slots = BTreeSet::new();
    for key in ["alice", "bob", "carol"] {
        slots.insert(cluster.slot(key).await);
    }
    assert_eq!(slots.len(), 3, "the subjects are in different slots");
    let both = json!([
        check("wide", "alice"),
        check("narrow", "bob"),
        check("wide", "carol")
    ]);
    for n in 0..2 {
        let verdict = take(&sidecar, both.clone()).await;
        assert_eq!(verdict["outcome"], "admitted", "{n}");
    }
    for _ in 0..20 {
        let denied = take(&sidecar, both.clone()).await;
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
        let look = peek(&sidecar, "wide", key).await;
        // 2 were admitted, and the peek answers as if it took another one.
        assert_eq!(look["remaining"], 8, "{key}: {look}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_over_several_slots_are_never_over() {
    const LIMIT: u64 = 100;
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, [(LIMIT, ""), (LIMIT * 2, "")]);
    let sidecars = [
        Arc::new(sidecar(policy.clone()).await),
        Arc::new(sidecar(policy).await),
    ];
    let admitted = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for worker in 0..12 {
        let (sidecar, admitted) = (Arc::clone(&sidecars[worker % 2]), Arc::clone(&admitted));
        workers.push(tokio::spawn(async move {
            for n in 0..40 {
                let wide = format!("wide-{}", (worker + n) % 5);
                let checks = json!([check("wide", &wide), check("narrow", "everyone")]);
                match take(&sidecar, checks).await["outcome"].as_str() {
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
        used += LIMIT * 2 - left(&sidecars[0], "wide", &format!("wide-{n}")).await;
    }
    assert_eq!(used, LIMIT);
}

/// A decision of one unit.
fn decision(subject: &str) -> Value {
    json!({ "checks": [check("wide", subject)] })
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
    let cluster = Cluster::start().await;
    let policy = policy(&cluster, [(NEVER, ""); 2]).timeout("200ms");
    let sidecar = sidecar(policy).await;
    let by_node = subjects_by_node(&cluster, 2).await;
    sidecar.knows_of(1).await;
    cluster.pause(2);
    let [one, other, dead] = &by_node[..] else {
        panic!("three nodes")
    };
    let asked = [&dead[0], &one[0], &dead[1], &other[0]].map(|subject| decision(subject));
    let admitted_by = async |source| decided(&sidecar, "wide", source, "admitted").await;
    eventually("its share decides for the dead node", async || {
        decide_all(&sidecar, asked.to_vec()).await;
        admitted_by("share").await >= 2
    })
    .await;
    let (share, store) = (admitted_by("share").await, admitted_by("store").await);
    for _ in 0..10 {
        let verdicts = decide_all(&sidecar, asked.to_vec()).await;
        let known = |verdict: &Value| verdict["outcome"] != "unavailable";
        assert!(verdicts.iter().all(known), "{verdicts:?}");
    }
    let (share, store) = (
        admitted_by("share").await - share,
        admitted_by("store").await - store,
    );
    assert_eq!((share, store), (20, 20));
}

/// The other node answered, so the decision was *unavailable* for as long as the outage lasted: the shares looked at their
/// own buckets only.
#[tokio::test]
async fn a_dead_nodes_limit_that_allows_leaves_the_rest_of_a_decision_to_its_share() {
    let cluster = Cluster::start().await;
    let allows = ", when_store_is_down: allow";
    let policy = policy(&cluster, [(NEVER, allows), (NEVER, "")]).timeout("200ms");
    let sidecar = sidecar(policy).await;
    let by_node = subjects_by_node(&cluster, 1).await;
    sidecar.knows_of(1).await;
    let of_dead = check("narrow", &by_node[2][0]);
    let of_other = check("wide", &by_node[0][0]);
    cluster.pause(2);
    eventually("the node counts as down", async || {
        take(&sidecar, json!([of_dead])).await["then"] == "allow"
    })
    .await;
    for _ in 0..10 {
        let verdict = take(&sidecar, json!([of_dead, of_other])).await;
        assert_eq!(
            (&verdict["outcome"], &verdict["limit"]),
            (&json!("admitted"), &json!("wide")),
            "{verdict}"
        );
    }
    sidecar.written_back().await;
    assert_eq!(left(&sidecar, "wide", &by_node[0][0]).await, NEVER - 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_node_delays_only_its_own_subjects() {
    let cluster = Cluster::start().await;
    // Otherwise a share of the limit would decide.
    let denies = ", when_store_is_down: deny";
    let policy = policy(&cluster, [(NEVER, denies); 2]).timeout("5s");
    let sidecar = Arc::new(sidecar(policy).await);
    let mut by_node = subjects_by_node(&cluster, 3).await;
    let still = by_node.pop().unwrap();
    let well = by_node.concat();
    for subject in well.iter().chain(&still) {
        let verdict = decide(&sidecar, decision(subject)).await;
        assert_eq!(verdict["outcome"], "admitted");
    }
    cluster.pause(2);
    // Waiting for the node: its own subjects, and a decision that needs it and another node.
    let mut waiting: Vec<_> = still.iter().map(|s| json!([check("wide", s)])).collect();
    waiting.push(json!([check("wide", &well[0]), check("wide", &still[0])]));
    let go_on = Arc::new(AtomicBool::new(true));
    // Asks again and again; each answer adds one to the count. Those that wait do so until the connection has been silent for
    // three seconds; meanwhile each of the others has answers.
    let start = |checks: Value, expected: &'static str| {
        let (sidecar, go_on, answers) = (
            Arc::clone(&sidecar),
            Arc::clone(&go_on),
            Arc::new(AtomicU64::new(0)),
        );
        let counted = Arc::clone(&answers);
        let task = tokio::spawn(async move {
            while go_on.load(Ordering::Relaxed) {
                let verdict = take(&sidecar, checks.clone()).await;
                assert_eq!(verdict["outcome"], expected, "{checks}");
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        (task, answers)
    };
    let of = |of: &[(_, Arc<AtomicU64>)]| -> Vec<u64> {
        of.iter()
            .map(|(_, answers)| answers.load(Ordering::Relaxed))
            .collect()
    };
    let waiting: Vec<_> = waiting
        .into_iter()
        .map(|c| start(c, "unavailable"))
        .collect();
    let others: Vec<_> = well
        .iter()
        .map(|s| start(json!([check("wide", s)]), "admitted"))
        .collect();
    eventually("the others are answered", async || {
        of(&others).iter().all(|answers| *answers >= 1)
    })
    .await;
    assert!(of(&waiting).iter().all(|answers| *answers == 0));
    sidecar.reaches("sluicegate_store_up", 0.0).await;
    eventually("each that waits is answered twice", async || {
        of(&waiting).iter().all(|answers| *answers >= 2)
    })
    .await;
    // The lanes that succeed do not hide the one that fails.
    assert_eq!(sidecar.metric("sluicegate_store_up").await, 0.0);
    // One caller's decisions on all nodes: the answers are in the caller's order.
    let asked = [&still[1], &well[0], &still[2], &well[5]].map(|subject| decision(subject));
    let verdicts = decide_all(&sidecar, asked.to_vec()).await;
    let outcomes: Vec<_> = verdicts.iter().map(|verdict| &verdict["outcome"]).collect();
    assert_eq!(
        outcomes,
        ["unavailable", "admitted", "unavailable", "admitted"]
    );
    go_on.store(false, Ordering::Relaxed);
    for (worker, _) in waiting.into_iter().chain(others) {
        worker.await.unwrap();
    }
    cluster.resume(2);
    // Without traffic for that node, the sidecar notices that it is back.
    sidecar.reaches("sluicegate_store_up", 1.0).await;
    for subject in well.iter().chain(&still) {
        let verdict = decide(&sidecar, decision(subject)).await;
        assert_eq!(verdict["outcome"], "admitted", "{subject}");
    }
}
