//! A Redis that answers what no Redis answers: it stops no sidecar, and the cause is reported.

use sluicegate_tests::ask::{PATIENT, decide, failures, policy, sidecar};
use sluicegate_tests::client::get;
use sluicegate_tests::process::{eventually, free_port, status};
use sluicegate_tests::sidecar::Sidecar;

use super::fake::{Answer, Fake};

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
        "CLUSTER SLOTS" => Some((slots.clone(), 0)),
        command if command.starts_with("EVAL") => Some((b"-ERR no script here\r\n".into(), 0)),
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

/// Each had connections and tasks, without a bound on how many.
#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_thousand_primaries_are_refused_by_that_name() {
    let rows: Vec<_> = (0..3_000)
        .map(|slot| row(slot, slot, &address(slot), 1))
        .collect();
    assert_survives(free_port(), &rows, "more than 1000 primaries", "connection").await;
}

/// What a Redis answers while a connection is made.
fn greeting(command: &str) -> Option<Answer> {
    let text = match command {
        "ROLE" => "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n",
        "INFO MEMORY" => "$0\r\n\r\n",
        _ => return None,
    };
    Some((text.into(), 0))
}

/// A sidecar whose memory grows by less than 64 MiB while it is told why; the fake has sent some of its answer.
async fn assert_bounded(fake: &Fake, words: &str) {
    const MOST_KB: u64 = 64 << 10;
    let store = format!("redis://127.0.0.1:{}", fake.port);
    let sidecar = sidecar(store, PATIENT, 10).await;
    assert_reported(&sidecar, words).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    assert!(failures(&sidecar, "connection").await >= 1.0);
    // For each new connection again.
    let before = fake.written();
    eventually("it is sent again", async || fake.written() > before).await;
    let most_kb = status(sidecar.id(), "VmHWM");
    println!("measured: {most_kb} kB at most");
    assert!(most_kb < MOST_KB, "{most_kb} kB");
    let log = sidecar.log();
    assert!(log.contains(words), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_string_of_400_megabytes_is_not_read() {
    const SIZE: usize = 400 << 20;
    let fake = Fake::start_anywhere(|command| match command {
        command if command.starts_with("EVAL") || command.starts_with("HGETALL") => {
            Some((format!("${SIZE}\r\n").into_bytes(), SIZE))
        }
        command => greeting(command),
    })
    .await;
    assert_bounded(&fake, "bytes or more, and at most 16777216 are read").await;
}

/// The library reserves and keeps 56 bytes for each value of three.
#[tokio::test(flavor = "multi_thread")]
async fn millions_of_values_are_not_read() {
    const COUNT: usize = 5_000_000;
    // The library reads the zeros, too.
    for (count, words) in [
        (
            format!("*{COUNT}\r\n"),
            "values or more, and at most 524288 are read",
        ),
        (
            format!("*{COUNT:040}\r\n"),
            "declares a length in more than 32 bytes",
        ),
    ] {
        let values = [count.as_bytes(), &b"_\r\n".repeat(COUNT)[..]].concat();
        let fake = Fake::start_anywhere(move |command| match command {
            command if command.starts_with("EVAL") => Some((values.clone(), 0)),
            command => greeting(command),
        })
        .await;
        assert_bounded(&fake, words).await;
    }
}
