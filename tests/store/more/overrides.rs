//! More overrides in the store than a sidecar reads, and as many as it does.

use sluicegate_tests::ask::{PATIENT, failures, logs, sidecar};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

const OVERRIDES: &str = "sg:{overrides}";

/// An override as the store has it.
fn unlimited() -> Vec<u8> {
    [&[0; 7][..], br#"{"unlimited":true}"#].concat()
}

/// How many overrides the sidecar has.
async fn overrides(sidecar: &Sidecar) -> f64 {
    let name = "sluicegate_overrides{allowance=\"unlimited\"}";
    sidecar.metric(name).await
}

/// Each reading takes all of them over the connection, and Redis's only thread writes them.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_overrides_are_not_read_again_and_again() {
    let redis = Redis::start().await;
    let mut connection = redis.connection().await;
    let mut all = redis::pipe();
    for number in 0..=10_000 {
        let field = format!("per-key:{number}");
        all.hset(OVERRIDES, field, unlimited()).ignore();
    }
    let () = all.query_async(&mut connection).await.unwrap();
    let sidecar = sidecar(redis.url(), PATIENT, 10).await;
    logs(&sidecar, "cannot use the store's overrides").await;
    // The sidecar looks for changes each second, by calls of a script, and announces itself.
    let (before, calls) = (redis.calls("hgetall").await, redis.script_calls().await);
    eventually("it has gone on", async || {
        redis.script_calls().await >= calls + 4
    })
    .await;
    let (read, more) = (redis.calls("hgetall").await, redis.script_calls().await);
    assert!(
        read - before <= (more - calls) / 4,
        "{read} times, {before} before"
    );
    let () = redis.command(&format!("HDEL {OVERRIDES} per-key:0")).await;
    eventually("the others apply", async || {
        overrides(&sidecar).await == 10_000.0
    })
    .await;
}

/// An answer is measured, not a connection: what is as large as overrides may be is read as often as it comes.
#[tokio::test(flavor = "multi_thread")]
async fn overrides_of_four_megabytes_are_read_again_and_again() {
    let redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), PATIENT, 10).await;
    let key = "k".repeat(1_000);
    let mut connection = redis.connection().await;
    let mut all = redis::pipe();
    for number in 0..4_000 {
        let field = format!("per-key:{number}{key}");
        all.hset(OVERRIDES, field, unlimited()).ignore();
    }
    let () = all.query_async(&mut connection).await.unwrap();
    for version in 1_u8..=8 {
        // The last number: anything may have ended since.
        let head = [[0, 0, 0, 0, 0, 0, version].as_slice(), &[0; 19], &[255; 7]].concat();
        let mut command = redis::cmd("HSET");
        command.arg(OVERRIDES).arg(":").arg(&head[..]);
        // Another one each time, so that the version shows.
        let field = format!("per-key:new{version}");
        command.arg(field).arg(unlimited());
        let () = command.query_async(&mut connection).await.unwrap();
        eventually("they are read", async || {
            overrides(&sidecar).await == 4_000.0 + f64::from(version)
        })
        .await;
    }
    assert_eq!(failures(&sidecar, "connection").await, 0.0);
}
