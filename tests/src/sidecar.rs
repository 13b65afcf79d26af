//! A sidecar on ports of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{get, post};
use crate::process::{Process, eventually, free_port, repository};

/// A running `sluicegate serve`.
#[derive(Debug)]
pub struct Sidecar {
    process: Process,
    command: Command,
    log: PathBuf,
    /// Path of its policy file.
    pub policy: PathBuf,
    /// Port for decisions; 0 where it listens on a Unix socket.
    pub port: u16,
    /// Port for metrics and probes.
    pub admin_port: u16,
    /// Its files, unless the test gave it a folder.
    folder: Option<TempDir>,
}

/// A sidecar that has not started yet: what differs from the usual one.
#[derive(Debug)]
pub struct Planned {
    policy: String,
    program: Option<PathBuf>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    files: Option<u32>,
    port: Option<u16>,
    socket: Option<PathBuf>,
}

impl Planned {
    /// Further arguments of `serve`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        self
    }

    /// Environment variables.
    #[must_use]
    pub fn environment(mut self, variables: &[(&str, String)]) -> Self {
        let owned = |(name, value): &(&str, String)| ((*name).to_owned(), value.clone());
        self.environment.extend(variables.iter().map(owned));
        self
    }

    /// A store that overrides the policy's, if there is one.
    #[must_use]
    pub fn store(self, url: Option<&str>) -> Self {
        let variable = url.map(|url| ("SLUICEGATE_STORE", url.to_owned()));
        self.environment(variable.as_slice())
    }

    /// A limit on its open files.
    #[must_use]
    pub fn files(mut self, files: u32) -> Self {
        self.files = Some(files);
        self
    }

    /// Another build.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        self.program = Some(program.to_owned());
        self
    }

    /// Decisions on this port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Decisions on a Unix socket.
    #[must_use]
    pub fn socket(mut self, socket: &Path) -> Self {
        self.socket = Some(socket.to_owned());
        self
    }

    /// Starts it, with a folder for its files.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start(self, folder: &Path) -> Sidecar {
        let (port, listen) = if let Some(socket) = &self.socket {
            (0, format!("unix:{}", socket.display()))
        } else {
            let port = self.port.unwrap_or_else(free_port);
            (port, format!("127.0.0.1:{port}"))
        };
        let admin_port = free_port();
        // In its own folder, because the sidecar watches the folder.
        let policy = folder.join(admin_port.to_string()).join("policy.yaml");
        std::fs::create_dir(policy.with_file_name("")).expect("a folder for the policy");
        std::fs::write(&policy, &self.policy).expect("a policy file");
        let mut command = self.command();
        command.arg("--policy").arg(&policy);
        command.args(["--listen", &listen]);
        command.args(["--admin-listen", &format!("127.0.0.1:{admin_port}")]);
        let log = folder.join(format!("sidecar-{admin_port}.log"));
        let process = launch(&mut command, &log, admin_port).await;
        Sidecar {
            process,
            command,
            log,
            policy,
            port,
            admin_port,
            folder: None,
        }
    }

    /// Starts it, with a folder of its own.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn alone(self) -> Sidecar {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sidecar = self.start(folder.path()).await;
        sidecar.folder = Some(folder);
        sidecar
    }

    fn command(&self) -> Command {
        let own = binary();
        let program = self.program.as_ref().unwrap_or(&own);
        let mut command = match self.files {
            None => Command::new(program),
            Some(files) => {
                let mut shell = Command::new("sh");
                let limited = format!("ulimit -n {files} && exec \"$@\"");
                shell.args(["-c", &limited, "sh"]).arg(program);
                shell
            }
        };
        command.arg("serve").args(&self.arguments);
        // Without a drain unless a test is about it; another build may lack the argument.
        if self.program.is_none() && !self.arguments.iter().any(|text| text == "--drain") {
            command.args(["--drain", "0s"]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Sidecar {
    /// Starts one with this policy (YAML) and a folder for its files.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start(policy: &str, folder: &Path) -> Self {
        Self::with(policy).start(folder).await
    }

    /// Starts one with this policy (YAML) and a folder of its own.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn alone(policy: &str) -> Self {
        Self::with(policy).alone().await
    }

    /// One with this policy, to be started.
    pub fn with(policy: &str) -> Planned {
        Planned {
            policy: policy.to_owned(),
            program: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            files: None,
            port: None,
            socket: None,
        }
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same ports.
    pub async fn restart(&mut self) {
        self.kill();
        self.process = launch(&mut self.command, &self.log, self.admin_port).await;
    }

    /// Replaces it as a package's upgrade does: SIGTERM, and the other program with the same policy on the same port for
    /// decisions. Returns how long nobody listened.
    ///
    /// # Panics
    /// The other one does not become ready.
    pub async fn replace(&mut self, program: &Path) -> Duration {
        self.signal("TERM");
        self.wait().await;
        let ended = Instant::now();
        let policy = std::fs::read_to_string(&self.policy).expect("a policy file");
        let folder = self.log.parent().expect("a folder").to_owned();
        let next = Self::with(&policy).program(program).port(self.port);
        let own = self.folder.take();
        *self = next.start(&folder).await;
        self.folder = own;
        ended.elapsed()
    }

    /// The address of a path on its port for decisions.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The address of a path on its port for metrics and probes.
    pub fn admin(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.admin_port)
    }

    /// Its answer to these decisions.
    ///
    /// # Panics
    /// It refuses them.
    pub async fn answer(&self, decisions: Value) -> Value {
        let body = json!({ "decisions": decisions }).to_string();
        let (status, answer) = post(&self.url("/v1/decide"), body).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str(&answer).expect("JSON")
    }

    /// Resets this limit for this key; its answer.
    pub async fn reset(&self, limit: &str, key: &str) -> String {
        let body = json!({ "resets": [{ "limit": limit, "key": key }] }).to_string();
        post(&self.admin("/v1/reset"), body).await.1
    }

    /// What `/readyz` says.
    pub async fn readyz(&self) -> String {
        get(&self.admin("/readyz")).await.1
    }

    /// Its metrics as text.
    pub async fn metrics(&self) -> String {
        get(&self.admin("/metrics")).await.1
    }

    /// Status and body of a PUT or DELETE of this override.
    ///
    /// # Panics
    /// Nothing answers.
    pub async fn change_override(&self, method: Method, body: String) -> (u16, String) {
        let url = self.admin("/v1/overrides");
        let request = crate::client::client().request(method, url);
        let request = request.header("content-type", "application/json");
        let answer = request.body(body).send().await.expect("an answer");
        (
            answer.status().as_u16(),
            answer.text().await.expect("a text body"),
        )
    }

    /// The value of a metric, named with its labels as in the text format.
    ///
    /// # Panics
    /// As [`metric_in`].
    pub async fn metric(&self, name: &str) -> f64 {
        metric_in(&self.metrics().await, name)
    }

    /// Waits until a metric has this value.
    ///
    /// # Panics
    /// It does not get it.
    pub async fn reaches(&self, metric: &str, value: f64) {
        let is_there = async || self.metric(metric).await == value;
        eventually(&format!("{metric} is {value}"), is_there).await;
    }

    /// Waits until `/readyz` says this.
    ///
    /// # Panics
    /// It does not.
    pub async fn reports(&self, words: &str) {
        eventually(words, async || self.readyz().await.contains(words)).await;
    }

    /// Waits until the store has everything that was admitted without it.
    ///
    /// # Panics
    /// It does not get it.
    pub async fn written_back(&self) {
        self.reaches("sluicegate_unwritten_buckets", 0.0).await;
    }

    /// Waits until its store has told it that so many sidecars share the limits: then it knows its share.
    ///
    /// # Panics
    /// It is not told so.
    pub async fn knows_of(&self, sidecars: u32) {
        self.reaches("sluicegate_sidecars", sidecars.into()).await;
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Sends it a signal, such as `HUP`.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits until it exits by itself.
    pub async fn wait(&mut self) {
        self.process.wait().await;
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// The value of a metric in the text format, named with its labels. The sidecar has every series from the beginning.
///
/// # Panics
/// There is none of that name: a test that took this for a zero could never fail.
pub fn metric_in(text: &str, name: &str) -> f64 {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("the sidecar has no metric {name}: {text}"))
}

async fn launch(command: &mut Command, log: &Path, admin_port: u16) -> Process {
    let mut process = Process::start(command, log, "build it: cargo build");
    let health = format!("http://127.0.0.1:{admin_port}/healthz");
    process
        .wait_until("the sidecar", async || {
            crate::client::answers(&health).await
        })
        .await;
    process
}

/// Path of the program: the one that this variable names, or the one of these tests' profile.
pub fn binary() -> PathBuf {
    if let Ok(path) = std::env::var("SLUICEGATE_BINARY") {
        return repository(&path);
    }
    // Where cargo puts it for the profile that these tests are built with.
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    repository(&format!("target/{profile}/sluicegate"))
}

/// Runs the program with these words: what it exits with, and all that it prints.
pub fn command(words: &str) -> (Option<i32>, String) {
    let mut command = Command::new(binary());
    let output = command.args(words.split_whitespace()).output().unwrap();
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code(), both.concat())
}

#[cfg(test)]
mod tests {
    use super::metric_in;

    const TEXT: &str = "# TYPE a counter\na{kind=\"x\"} 0\na_total 3\n";

    #[test]
    fn a_series_is_found_by_its_whole_name() {
        assert_eq!(metric_in(TEXT, "a{kind=\"x\"}"), 0.0);
        assert_eq!(metric_in(TEXT, "a_total"), 3.0);
    }

    #[test]
    #[should_panic(expected = "no metric a{kind=\"y\"}")]
    fn a_series_that_does_not_exist_is_no_zero() {
        metric_in(TEXT, "a{kind=\"y\"}");
    }
}
