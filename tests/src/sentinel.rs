//! A primary and its replica, watched by three sentinels.

use std::path::Path;
use std::process::Command;

use redis::{RedisResult, Value};

use crate::process::{Process, eventually, free_port};
use crate::redis::{Redis, ask, program};

const SENTINELS: usize = 3;

/// The primary, its replica and the sentinels of `main`.
#[derive(Debug)]
pub struct Sentinels {
    /// The primary at first.
    pub first: Redis,
    /// Its replica.
    pub second: Redis,
    sentinels: Vec<(Process, u16)>,
}

impl Sentinels {
    /// Starts them, and waits until the sentinels know each other and the replica.
    ///
    /// # Panics
    /// They do not.
    pub async fn start(folder: &Path) -> Self {
        let all = Self::start_with(folder, "").await;
        all.agree().await;
        all
    }

    /// Starts them with further lines in the sentinels' configuration, and does not wait.
    ///
    /// # Panics
    /// One of them does not start.
    pub async fn start_with(folder: &Path, more: &str) -> Self {
        let (first, second) = (Redis::start().await, Redis::start().await);
        let words = format!("REPLICAOF 127.0.0.1 {}", first.port());
        let _: () = second.command(&words).await;
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            let port = free_port();
            let file = folder.join(format!("sentinel-{port}.conf"));
            let primary = first.port();
            let text = format!(
                "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 2\n\
                 sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n{more}\n"
            );
            std::fs::write(&file, text).expect("a configuration file");
            let mut command = Command::new(program());
            command.arg(&file).arg("--sentinel").current_dir(folder);
            let log = folder.join(format!("sentinel-{port}.log"));
            let process = Process::start(&mut command, &log, "apt-get install redis-server");
            sentinels.push((process, port));
        }
        Self {
            first,
            second,
            sentinels,
        }
    }

    /// Waits until every sentinel knows the others and the replica.
    ///
    /// # Panics
    /// They do not.
    pub async fn agree(&self) {
        for (_, port) in &self.sentinels {
            eventually("the sentinels know each other", async || {
                let about: RedisResult<std::collections::HashMap<String, String>> =
                    ask(*port, "SENTINEL MASTER main").await;
                about.is_ok_and(|about| {
                    about.get("num-slaves").map(String::as_str) == Some("1")
                        && about.get("num-other-sentinels").map(String::as_str) == Some("2")
                })
            })
            .await;
        }
    }

    /// As a policy's `store` names them, without a database.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .sentinels
            .iter()
            .map(|(_, port)| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// Has all of them name another Redis the primary.
    ///
    /// # Panics
    /// One of them refuses.
    pub async fn monitor(&self, port: u16) {
        for (_, sentinel) in &self.sentinels {
            let monitor = format!("SENTINEL MONITOR main 127.0.0.1 {port} 2");
            // It may have just been started.
            eventually("a sentinel that obeys", async || {
                let _: RedisResult<()> = ask(*sentinel, "SENTINEL REMOVE main").await;
                ask::<()>(*sentinel, &monitor).await.is_ok()
            })
            .await;
        }
    }

    /// Kills one sentinel.
    pub fn kill_one(&mut self) {
        self.sentinels[0].0.kill();
    }

    /// Has the replica promoted, with the old primary up.
    ///
    /// # Panics
    /// The sentinels do not begin.
    pub async fn fail_over(&self) {
        // A sentinel may need a moment before it accepts the replica as a candidate.
        eventually("the failover begins", async || {
            let done: RedisResult<()> = ask(self.sentinels[1].1, "SENTINEL FAILOVER main").await;
            done.is_ok()
        })
        .await;
    }

    /// Waits until the replica is the primary.
    ///
    /// # Panics
    /// It does not become it.
    pub async fn promoted(&self) {
        eventually("the replica is primary", async || {
            is(&self.second, b"master").await
        })
        .await;
    }

    /// Waits until the old primary is a replica.
    ///
    /// # Panics
    /// It does not become it.
    pub async fn demoted(&self) {
        eventually("the old primary is a replica", async || {
            is(&self.first, b"slave").await
        })
        .await;
    }
}

/// Whether a Redis reports this role. A failover closes connections, so each question opens its own.
async fn is(redis: &Redis, role: &[u8]) -> bool {
    let answer: RedisResult<Vec<Value>> = ask(redis.port(), "ROLE").await;
    answer.is_ok_and(|answer| matches!(&answer[0], Value::BulkString(is) if is == role))
}
