//! A Redis that answers what no Redis answers: it stops no sidecar, and the cause is reported.

use sluicegate_tests::ask::{PATIENT, decide, failures, policy};
use sluicegate_tests::client::get;
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::sidecar::Sidecar;

use super::fake::Fake;

/// One thread of the runtime, as on a machine with one processor: what blocks it blocks everything.
const ONE_WORKER: (&str, &str) = ("TOKIO_WORKER_THREADS", "1");

/// A sidecar with a Cluster of one node has about a hundred.
const MOST_TASKS: f64 = 300.0;

/// Waits until the cause is reported, and asks for the sidecar's health meanwhile, as an orchestrator does.
async fn assert_reported(sidecar: &Sidecar, words: &str) {
    // A client waits for ten seconds: what blocked the sidecar did so for minutes.
    eventually("the cause is reported", async || {
        assert_eq!(get(&sidecar.admin("/healthz")).await.0, 200);
        sidecar.readyz().await.contains(words)
    })
    .await;
}

/// A row of CLUSTER SLOTS.
fn row(first: usize, last: usize, host: &str, port: u16) -> String {
    let host_length = host.len();
    format!(
        "*3\r\n:{first}\r\n:{last}\r\n*3\r\n${host_length}\r\n{host}\r\n:{port}\r\n$2\r\nid\r\n"
    )
}

/// A node of a Cluster that answers CLUSTER SLOTS with these rows, and fails every call of the script.
async fn node(port: u16, rows: &[String]) -> Fake {
    let slots = format!("*{}\r\n{}", rows.len(), rows.concat()).into_bytes();
    Fake::start(port, move |command| match command {
        "CLUSTER SLOTS" => Some(slots.clone()),
        command if command.starts_with("EVAL") => Some(b"-ERR no script here\r\n".into()),
        _ => None,
    })
    .await
}

/// Addresses of which no two are the same.
fn address(number: usize) -> String {
    format!("127.1.{}.{}", number / 250, number % 250 + 1)
}

/// A sidecar whose only node answers CLUSTER SLOTS so reports that, has no verdicts, and starts next to no tasks for it.
async fn assert_survives(port: u16, rows: &[String], words: &str, kind: &str) {
    let _node = node(port, rows).await;
    let store = format!("redis+cluster://127.0.0.1:{port}");
    let environment = [(ONE_WORKER.0, ONE_WORKER.1.to_owned())];
    let planned = Sidecar::with(&policy(store, PATIENT, 10)).environment(&environment);
    let sidecar = planned.alone().await;
    assert_reported(&sidecar, words).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    assert!(failures(&sidecar, kind).await >= 1.0);
    let tasks = sidecar.metric("sluicegate_tasks").await;
    assert!(tasks < MOST_TASKS, "{tasks} tasks");
}

/// All tags were tried against all rows for each of them: 147 KB from a node, and nothing was answered for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_primaries_without_a_slot_do_not_stop_the_sidecar() {
    let port = free_port();
    let own = row(0, 16_383, "127.0.0.1", port);
    let empty = (0..3_000).map(|number| row(2, 1, &address(number), 1));
    let rows: Vec<_> = [own].into_iter().chain(empty).collect();
    // The node itself is used: it refuses the script.
    assert_survives(port, &rows, "no script here", "refused").await;
}
