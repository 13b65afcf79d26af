//! The memory of a sidecar with the embedded store when clients invent keys.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::process::{self, eventually_within};
use sluicegate_tests::sidecar::Sidecar;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{Policy, ask, check};

const MIB: usize = 1 << 20;
/// The largest permitted batch.
const KEYS: usize = 1_000;

/// The resident memory of the process, in bytes.
fn resident(sidecar: &Sidecar) -> usize {
    process::status(sidecar.id(), "VmRSS") as usize * 1024
}

/// Asks for as many decisions over new keys as a request may have; returns the answer.
async fn invent(sidecar: &Sidecar, limit: &str, round: usize) -> String {
    let decision = |key| json!({ "checks": [check(limit, &format!("invented-{round}-{key}"))] });
    let decisions: Vec<_> = (0..KEYS).map(decision).collect();
    ask(
        sidecar.port,
        "/v1/decide",
        json!({ "decisions": decisions }),
    )
    .await
    .to_string()
}

fn policy(limit_mib: usize) -> String {
    Policy::on("memory")
        .line(&format!("memory_limit: {limit_mib}MiB"))
        .limit(
            "short",
            "algorithm: sliding_log, when_store_is_down: allow, windows: [{ quota: 10, per: 10s }]",
        )
        .window("long", "sliding_log", 10, "24h")
        .text()
}

/// Invents more keys than fit: ten thousand for each MiB of the limit. Returns the memory before, and by how much it has grown
/// at most.
async fn flood(sidecar: &Sidecar, limit_mib: usize) -> (usize, usize) {
    // A few keys that last a day, spread over the flood, must not pin the memory around them.
    invent(sidecar, "long", 0).await;
    let before = resident(sidecar);
    let mut most = before;
    let mut full = 0;
    let rounds = limit_mib * 10;
    for round in 0..rounds {
        let answer = invent(sidecar, "short", round).await;
        full += answer.matches("unavailable").count();
        // It is full, not down: the rule decides, or whoever invents keys would not be limited.
        assert!(!answer.contains("then"), "round {round}");
        if round % (rounds / 4) == 0 {
            invent(sidecar, "long", round + 1).await;
        }
        most = most.max(resident(sidecar));
    }
    assert!(full > 0, "as many keys need more");
    (before, most - before)
}

#[tokio::test]
async fn a_flood_of_keys_stays_within_the_limit() {
    let sidecar = Sidecar::alone(&policy(8)).await;
    let (_, grown) = flood(&sidecar, 8).await;
    assert!(grown < 16 * MIB, "{} kB", grown >> 10);
    let full = "sluicegate_store_errors_total{kind=\"full\"}";
    assert!(sidecar.metric(full).await > 0.0);
    // So SluicegateStoreFailing, which divides by these calls, stays silent: the runbook names the alerts that do not.
    let calls = sidecar.metric("sluicegate_store_duration_seconds_count");
    assert_eq!(calls.await, 0.0);
    assert_eq!(sidecar.metric("sluicegate_store_up").await, 1.0);
    // Known keys are still admitted.
    let known = invent(&sidecar, "long", 0).await;
    assert_eq!(known.matches("admitted").count(), KEYS, "{known}");
}

#[tokio::test]
#[ignore = "needs the allocator of a released sidecar: cargo build -p sluicegate, and half a minute"]
async fn the_memory_of_a_flood_of_keys_comes_back() {
    let sidecar = Sidecar::alone(&policy(32)).await;
    let (before, grown) = flood(&sidecar, 32).await;
    // Gradually: the allocator returns pages that have been free for ten seconds.
    let limit = Duration::from_secs(60);
    eventually_within(limit, "half of the memory is returned", async || {
        resident(&sidecar).saturating_sub(before) <= grown / 2
    })
    .await;
}

/// What nobody needs a token for, over one connection: reports of cached denials with keys of any length, new filters, and
/// denied decisions of many long keys.
#[tokio::test]
async fn one_connection_cannot_fill_the_memory() {
    const LIMITS: usize = 20;
    let limits = (0..LIMITS).map(|number| format!("l{number}"));
    let limits: Vec<_> = limits.chain(["tight".to_owned()]).collect();
    let text = limits.iter().fold(
        Policy::on("memory")
            .line("denial_ttl: 60s")
            .line("memory_limit: 8MiB"),
        |policy, limit| policy.window(limit, "fixed_window", 1_000, "1h"),
    );
    let sidecar = Sidecar::alone(&text.text()).await;
    let key = |number: usize, length: usize| format!("{number:010}{}", "k".repeat(length - 10));
    let take = json!({ "checks": [{ "limit": "tight", "key": "k", "cost": 1_000 }] });
    ask(sidecar.port, "/v1/decide", json!({ "decisions": [take] })).await;
    let mut connection = Connection::to(&sidecar).await;
    connection.posts(json!({ "decisions": [] }), "").await;
    let before = resident(&sidecar);
    let mut number = 0;
    for round in 0..50 {
        for _ in 0..3 {
            number += 1;
            let denied = [json!({ "limit": "l0", "key": key(number, 900_000), "count": 1 })];
            connection
                .posts(json!({ "decisions": [], "denied": denied }), "")
                .await;
        }
        let denied = (0..1_000).map(|_| {
            number += 1;
            let limit = &limits[number % LIMITS];
            json!({ "limit": limit, "key": key(number, 512), "count": 1, "shadow": key(number, 400) })
        });
        let mut denied: Vec<_> = denied.collect();
        denied
            .iter_mut()
            .take(900)
            .for_each(|one| drop(one.as_object_mut().unwrap().remove("shadow")));
        connection
            .posts(json!({ "decisions": [], "denied": denied }), "")
            .await;
        let decisions = (0..20).map(|_| {
            let other = |_| {
                number += 1;
                json!({ "limit": "l1", "key": key(number, 512) })
            };
            let mut checks = vec![json!({ "limit": "tight", "key": "k" })];
            checks.extend((0..31).map(other));
            json!({ "checks": checks })
        });
        let decisions: Vec<_> = decisions.collect();
        let answer = connection
            .posts(json!({ "decisions": decisions }), "")
            .await;
        assert_eq!(answer.matches("denied").count(), 20, "{answer}");
        // Texts of three bytes a character.
        let text = "\\u6c34".repeat(256);
        for filter in 0..50 {
            let sets = vec![text.clone(); 7].join("\",\"");
            let report = format!(
                "sluicegate-filter: 0.1.0 configuration=2d0f3b8e61a4\r\nsluicegate-rules: {{\"vm\":\"{:032x}\",\"node\":\"{text}\",\"sets\":[\"{sets}\"],\"serves\":true,\"why\":\"{text}\"}}\r\n",
                round * 50 + filter
            );
            connection.gets("/v1/rules", &report).await;
        }
    }
    let grown = resident(&sidecar).saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB", grown >> 20);
}

/// One connection for all requests.
struct Connection(TcpStream);

impl Connection {
    async fn to(sidecar: &Sidecar) -> Self {
        Self(
            TcpStream::connect(("127.0.0.1", sidecar.port))
                .await
                .unwrap(),
        )
    }

    async fn posts(&mut self, body: Value, headers: &str) -> String {
        let body = body.to_string();
        let head = format!(
            "POST /v1/decide HTTP/1.1\r\nhost: s\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        self.sends(&(head + &body)).await
    }

    async fn gets(&mut self, path: &str, headers: &str) -> String {
        self.sends(&format!("GET {path} HTTP/1.1\r\nhost: s\r\n{headers}\r\n"))
            .await
    }

    /// The body that answers.
    async fn sends(&mut self, request: &str) -> String {
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
                let length = head.split("content-length: ").nth(1).unwrap();
                let length: usize = length.lines().next().unwrap().parse().unwrap();
                if body.len() >= length {
                    return body.to_owned();
                }
            }
            assert_ne!(self.0.read_buf(&mut answer).await.unwrap(), 0, "{text}");
        }
    }
}
