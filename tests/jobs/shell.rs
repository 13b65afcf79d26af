//! Runs `sluicegate` as a job would, in a folder and an environment of its own.

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, binary};
use tempfile::TempDir;
use tokio::process::Command;

/// These machines may stand still for tens of milliseconds, and a stall is not an outage.
pub const POLICY: &str = "
store_timeout: 2s
limits:
  hourly: { algorithm: sliding_log, windows: [{ quota: 10, per: 1h }] }
  other: { algorithm: sliding_log, windows: [{ quota: 5, per: 1h }] }
  brief: { algorithm: sliding_log, windows: [{ quota: 2, per: 8s }] }
  short: { algorithm: sliding_log, windows: [{ quota: 2, per: 3s }] }
  open: { algorithm: sliding_log, windows: [{ quota: 10, per: 1h }], when_store_is_down: allow }
  gpu: { algorithm: concurrency, windows: [{ quota: 2, per: 3s }] }
";

/// No command of these tests takes longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Its exit status.
    pub fn code(&self) -> i32 {
        let code = self.status.code();
        code.unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }

    /// The object that it printed.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A folder and an environment.
#[derive(Debug)]
pub struct Shell {
    pub folder: TempDir,
    environment: BTreeMap<String, String>,
}

impl Shell {
    /// One whose PATH has `sluicegate` on it.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let program = binary().canonicalize().unwrap();
        std::os::unix::fs::symlink(program, bin.join("sluicegate")).unwrap();
        let mut shell = Self {
            folder,
            environment: BTreeMap::new(),
        };
        shell.set("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        shell.set("HOME", shell.folder.path().display().to_string());
        shell
    }

    /// One with [`POLICY`] as `policy.yaml`.
    pub fn with_policy() -> Self {
        let shell = Self::new();
        shell.write("policy.yaml", POLICY);
        shell
    }

    /// One that asks a sidecar on its own memory.
    pub async fn with_sidecar() -> (Self, Sidecar) {
        let mut shell = Self::with_policy();
        let sidecar = Sidecar::start(POLICY, shell.folder.path()).await;
        shell.ask(&sidecar);
        (shell, sidecar)
    }

    /// One whose policy is on a Redis.
    pub async fn with_redis() -> (Self, Redis) {
        let mut shell = Self::with_policy();
        let redis = Redis::start().await;
        shell.set("SLUICEGATE_STORE", redis.url());
        (shell, redis)
    }

    /// Asks this sidecar from now on.
    pub fn ask(&mut self, sidecar: &Sidecar) {
        let url = |port| format!("http://127.0.0.1:{port}");
        self.set("SLUICEGATE_SIDECAR", url(sidecar.port));
        self.set("SLUICEGATE_ADMIN", url(sidecar.admin_port));
    }

    /// Sets a variable of the environment.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.environment.insert(name.to_owned(), value.into());
    }

    /// Writes a file in the folder.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Whether a file is in the folder.
    pub fn has(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }

    /// A command in the folder and the environment, and nothing else.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(&self.environment)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs `sluicegate`.
    pub async fn sluicegate(&self, arguments: &str) -> Ran {
        self.run("sluicegate", arguments.split_whitespace()).await
    }

    /// Runs `sluicegate`, which has to succeed.
    pub async fn must(&self, arguments: &str) -> Ran {
        self.ends(0, arguments).await
    }

    /// Runs `sluicegate`, which has to end with this status.
    pub async fn ends(&self, code: i32, arguments: &str) -> Ran {
        let ran = self.sluicegate(arguments).await;
        assert_eq!(ran.code(), code, "{arguments}: {ran:?}");
        ran
    }

    /// Runs a text as a shell's.
    pub async fn sh(&self, text: &str) -> Ran {
        self.run("sh", ["-eu", "-c", text]).await
    }

    /// Runs a program.
    pub async fn run<'a>(
        &self,
        program: &str,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Ran {
        // The search on our PATH would come before that on the command's own.
        let own = self.folder.path().join("bin").join(program);
        let program = if own.exists() {
            own.display().to_string()
        } else {
            program.to_owned()
        };
        let mut command = self.command(&program);
        command.args(arguments);
        let output = tokio::time::timeout(DEADLINE, command.output()).await;
        let output = output.expect("an end in time").unwrap();
        Ran {
            status: output.status,
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What is left of a limit for the key `k`, by `peek` with these arguments.
    pub async fn left(&self, limit: &str, more: &str) -> u64 {
        let look = format!("peek --limit {limit} --key k --output json {more}");
        self.must(&look).await.json()["remaining"].as_u64().unwrap()
    }
}
