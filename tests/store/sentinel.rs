//! Finding the primary through sentinels, and following a failover.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sluicegate_tests::process::{Process, eventually, free_port};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use crate::support::{BACK_WITHIN, decide, decide_for, policy, print_measured, wait_until_back};

const SENTINELS: usize = 3;

/// Sentinels of `main`, and their ports.
async fn sentinels(folder: &Path, primary: u16, more: &str) -> Vec<(Process, u16)> {
    let mut sentinels = Vec::new();
    for _ in 0..SENTINELS {
        let port = free_port();
        let file = folder.join(format!("sentinel-{port}.conf"));
        let text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n{more}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(sluicegate_tests::redis::program());
        command.arg(&file).arg("--sentinel").current_dir(folder);
        let log = folder.join(format!("sentinel-{port}.log"));
        let process = Process::start(&mut command, &log, "apt-get install redis-server");
        sentinels.push((process, port));
    }
    sentinels
}

fn store(sentinels: &[(Process, u16)], options: &str) -> String {
    let hosts: Vec<_> = sentinels
        .iter()
        .map(|(_, port)| format!("127.0.0.1:{port}"))
        .collect();
    format!(
        "{{ url: 'redis+sentinel://{}/main/1'{options} }}",
        hosts.join(",")
    )
}

async fn ask<T: redis::FromRedisValue>(port: u16, words: &str) -> redis::RedisResult<T> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    for word in words {
        command.arg(word);
    }
    command.query_async(&mut connection).await
}

/// Waits until every sentinel knows the others and one replica.
async fn agreed(sentinels: &[(Process, u16)]) {
    for (_, port) in sentinels {
        eventually("the sentinels know each other", async || {
            let about: redis::RedisResult<std::collections::HashMap<String, String>> =
                ask(*port, "SENTINEL MASTER main").await;
            about.is_ok_and(|about| {
                about.get("num-slaves").map(String::as_str) == Some("1")
                    && about.get("num-other-sentinels").map(String::as_str) == Some("2")
            })
        })
        .await;
    }
}

/// Whether a Redis reports this role. A failover closes connections, so each question opens its own.
async fn is(redis: &Redis, role: &[u8]) -> bool {
    let answer: redis::RedisResult<Vec<redis::Value>> = ask(redis.port(), "ROLE").await;
    answer.is_ok_and(|answer| matches!(&answer[0], redis::Value::BulkString(is) if is == role))
}

async fn pair() -> (Redis, Redis) {
    let (first, second) = (Redis::start().await, Redis::start().await);
    let words = format!("REPLICAOF 127.0.0.1 {}", first.port());
    let _: () = second.command(&words).await;
    (first, second)
}

#[tokio::test]
async fn the_primary_is_found_and_followed_when_it_dies() {
    let folder = tempfile::tempdir().unwrap();
    let (mut first, second) = pair().await;
    let mut sentinels = sentinels(folder.path(), first.port(), "").await;
    agreed(&sentinels).await;
    // One of the configured sentinels is down.
    sentinels[0].0.kill();
    let sidecar = Sidecar::start(
        &policy(&store(&sentinels, ""), "500ms", 1_000),
        folder.path(),
    )
    .await;
    wait_until_back(&sidecar, "k").await;
    let size: i64 = {
        let mut connection = first.connection().await;
        let mut commands = redis::pipe();
        commands.cmd("SELECT").arg(1).ignore().cmd("DBSIZE");
        let (size,): (i64,) = commands.query_async(&mut connection).await.unwrap();
        size
    };
    assert!(size >= 1, "it is not in database 1 of the primary");
    first.kill();
    eventually("the replica is primary", async || {
        is(&second, b"master").await
    })
    .await;
    let time = wait_until_back(&sidecar, "k").await;
    print_measured(
        "Sentinel: primary killed, after its replica was promoted",
        time,
    );
    assert!(time < BACK_WITHIN, "{time:?}");
}

#[tokio::test]
async fn s1_a_failover_on_command_is_followed_with_the_old_primary_up() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = pair().await;
    let sentinels = sentinels(folder.path(), first.port(), "").await;
    agreed(&sentinels).await;
    let sidecar = Sidecar::start(
        &policy(&store(&sentinels, ""), "500ms", 1_000),
        folder.path(),
    )
    .await;
    wait_until_back(&sidecar, "k").await;
    // A sentinel may need a moment before it accepts the replica as a candidate.
    eventually("the failover begins", async || {
        let done: redis::RedisResult<()> = ask(sentinels[1].1, "SENTINEL FAILOVER main").await;
        done.is_ok()
    })
    .await;
    eventually("the replica is primary", async || {
        is(&second, b"master").await
    })
    .await;
    eventually("the old primary is a replica", async || {
        is(&first, b"slave").await
    })
    .await;
    let time = wait_until_back(&sidecar, "k").await;
    print_measured("Sentinel: failover on command", time);
    assert!(time < BACK_WITHIN, "{time:?}");
    let after = decide_for(&sidecar, "k", Duration::from_secs(2)).await;
    assert!(
        after.iter().all(|outcome| outcome == "admitted"),
        "{after:?}"
    );
}

#[tokio::test]
async fn sentinels_with_a_password_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _second) = pair().await;
    let sentinels = sentinels(folder.path(), first.port(), "requirepass guard").await;
    let file = folder.path().join("guard");
    std::fs::write(&file, "wrong").unwrap();
    let options = format!(", sentinel: {{ password_file: {} }}", file.display());
    let store = store(&sentinels, &options);
    let sidecar = Sidecar::start(&policy(&store, "500ms", 10), folder.path()).await;
    eventually("the sentinels refuse it", async || {
        decide(&sidecar, "k").await == "unavailable" && sidecar.log().contains("refused the user")
    })
    .await;
    std::fs::write(&file, "guard").unwrap();
    assert!(wait_until_back(&sidecar, "k").await < BACK_WITHIN);
}
