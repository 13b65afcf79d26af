//! The memory of a sidecar with the embedded store when clients invent keys.

use std::time::Duration;

use serde_json::json;
use sluicegate_tests::process::{self, eventually_within};
use sluicegate_tests::sidecar::Sidecar;

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
