//! A Redis on its own port, without persistence.

use std::path::{Path, PathBuf};
use std::process::Command;

use redis::aio::MultiplexedConnection;
use tokio::net::TcpStream;

use crate::process::{Process, eventually, free_port};

/// A running redis-server.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Redis {
    /// Starts one.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts one with further arguments.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[]).await
    }

    /// Likewise, with these environment variables.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_in(arguments: &[&str], environment: &[(&'static str, PathBuf)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let process = launch_in(port, folder.path(), arguments, environment).await;
        Self {
            process,
            port,
            folder,
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            environment: environment.to_vec(),
        }
    }

    /// The folder with its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends it a command, its words separated by spaces.
    ///
    /// # Panics
    /// It answers with an error, or does not answer.
    pub async fn command<T: redis::FromRedisValue>(&self, words: &str) -> T {
        ask(self.port, words).await.expect("an answer")
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A new connection.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connection(&self) -> MultiplexedConnection {
        connect(self.port).await.expect("a Redis that answers")
    }

    /// Calls of scripts so far.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn script_calls(&self) -> u64 {
        self.calls("evalsha").await + self.calls("eval").await
    }

    /// Calls of a command so far, which is named in lower case.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn calls(&self, command: &str) -> u64 {
        let statistics: String = self.command("INFO commandstats").await;
        let name = format!("cmdstat_{command}:calls=");
        let mut calls = statistics.lines().filter_map(|line| {
            let rest = line.strip_prefix(&name)?;
            rest.split(',').next()?.parse().ok()
        });
        calls.next().unwrap_or(0)
    }

    /// All keys of limits, without the list of sidecars and what probes leave for a moment.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = self.all_keys().await;
        keys.retain(|key| !key.starts_with("sg:{sidecars}:") && !key.ends_with(":probe"));
        keys
    }

    /// All keys.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn all_keys(&self) -> Vec<String> {
        self.command("KEYS *").await
    }

    /// Kills it, as a crash would; its state is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.kill();
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        let folder = self.folder.path();
        self.process = launch_in(self.port, folder, &arguments, &self.environment).await;
    }

    /// Starts it again with these further arguments, and with the snapshot that it has saved; returns when it listens,
    /// which it does while it loads.
    ///
    /// # Panics
    /// It does not listen.
    pub async fn restart_loading(&mut self, more: &[&str]) {
        self.kill();
        let folder = self.folder.path();
        let mut command = command(self.port, folder, more);
        let log = folder.join(format!("redis-{}.log", self.port));
        self.process = Process::start(&mut command, &log, INSTALL);
        let port = self.port;
        let listens = async || TcpStream::connect(("127.0.0.1", port)).await.is_ok();
        self.process.wait_until("redis", listens).await;
    }

    /// Waits until it has loaded its snapshot.
    ///
    /// # Panics
    /// It has not within a minute.
    pub async fn loaded(&self) {
        eventually("the snapshot is loaded", async || {
            ask::<i64>(self.port, "DBSIZE").await.is_ok()
        })
        .await;
    }

    /// Pauses it: connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }
}

/// A new connection to the Redis on a port.
///
/// # Errors
/// It does not answer.
pub async fn connect(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    redis::Client::open(("127.0.0.1", port))?
        .get_multiplexed_async_connection()
        .await
}

/// Sends a command by a connection of its own to the Redis on a port.
pub(crate) async fn ask<T: redis::FromRedisValue>(port: u16, words: &str) -> redis::RedisResult<T> {
    from_words(words)
        .query_async(&mut connect(port).await?)
        .await
}

/// A command, from its words.
pub fn from_words(words: &str) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    command.arg(words.split(' ').collect::<Vec<_>>());
    command
}

/// The redis-server on PATH, or the one that `make versions` tries: Redis or Valkey, of any version.
pub fn program() -> String {
    std::env::var("SLUICEGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

const INSTALL: &str = "install it: apt-get install redis-server";

/// Starts a redis-server with further arguments and waits until it answers.
pub(crate) async fn launch(port: u16, folder: &Path, more: &[&str]) -> Process {
    launch_in(port, folder, more, &[]).await
}

pub(crate) async fn launch_in(
    port: u16,
    folder: &Path,
    more: &[&str],
    environment: &[(&'static str, PathBuf)],
) -> Process {
    let mut command = command(port, folder, more);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let log = folder.join(format!("redis-{port}.log"));
    let mut process = Process::start(&mut command, &log, INSTALL);
    process
        .wait_until("redis", async || connect(port).await.is_ok())
        .await;
    process
}

fn command(port: u16, folder: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command
        .args(["--save", "", "--appendonly", "no"])
        .args(more);
    command.arg("--dir").arg(folder);
    command
}
