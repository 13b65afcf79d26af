//! A Redis on a port of its own, with nothing on disk.

use std::path::Path;
use std::process::Command;

use redis::aio::MultiplexedConnection;

use crate::process::{Process, free_port};

/// A running redis-server.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    folder: tempfile::TempDir,
}

impl Redis {
    /// Starts one.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let process = launch(port, folder.path(), &[]).await;
        Self {
            process,
            port,
            folder,
        }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it listens, on the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A new connection.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connection(&self) -> MultiplexedConnection {
        connect(self.port).await.expect("a Redis that answers")
    }

    /// All keys that it holds.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn keys(&self) -> Vec<String> {
        redis::cmd("KEYS")
            .arg("*")
            .query_async(&mut self.connection().await)
            .await
            .expect("a Redis that answers")
    }

    /// Ends it at once, as a crash would; what it held is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.kill();
        self.process = launch(self.port, self.folder.path(), &[]).await;
    }

    /// Lets it stand still: connections stay open and nothing is answered.
    pub fn pause(&self) {
        self.process.signal("STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.process.signal("CONT");
    }
}

/// A new connection to whatever Redis is on a port.
pub(crate) async fn connect(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    redis::Client::open(("127.0.0.1", port))?
        .get_multiplexed_async_connection()
        .await
}

/// A redis-server with these arguments besides, which answers.
pub(crate) async fn launch(port: u16, folder: &Path, more: &[&str]) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command
        .args(["--save", "", "--appendonly", "no"])
        .args(more);
    command.arg("--dir").arg(folder);
    let log = folder.join(format!("redis-{port}.log"));
    let install = "install it: apt-get install redis-server";
    let mut process = Process::start(&mut command, &log, install);
    process
        .wait_until("redis", async || connect(port).await.is_ok())
        .await;
    process
}
