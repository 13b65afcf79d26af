//! A sidecar on ports of its own.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::Method;

use crate::process::{Process, eventually, free_port, repository};

/// A running `sluicegate serve`.
#[derive(Debug)]
pub struct Sidecar {
    process: Process,
    command: Command,
    log: std::path::PathBuf,
    /// Path of its policy file.
    pub policy: std::path::PathBuf,
    /// Port for decisions; 0 where it listens on a Unix socket.
    pub port: u16,
    /// Port for metrics and probes.
    pub admin_port: u16,
}

impl Sidecar {
    /// Starts one with this policy (YAML) and a folder for its files.
    pub async fn start(policy: &str, folder: &Path) -> Self {
        Self::start_on(policy, None, folder).await
    }

    /// Starts one whose environment overrides the policy's store.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_on(policy: &str, store: Option<&str>, folder: &Path) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let environment = store.map(|store| ("SLUICEGATE_STORE", store.to_owned()));
        Self::start_at(
            own(&[]),
            policy,
            environment.as_slice(),
            folder,
            port,
            &listen,
        )
        .await
    }

    /// Starts one with these environment variables.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_in(policy: &str, environment: &[(&str, String)], folder: &Path) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        Self::start_at(own(&[]), policy, environment, folder, port, &listen).await
    }

    /// Starts one with further arguments of `serve`.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_with(policy: &str, folder: &Path, arguments: &[&str]) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        Self::start_at(own(arguments), policy, &[], folder, port, &listen).await
    }

    /// Starts one with this limit on open files.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_with_files(policy: &str, folder: &Path, files: u32) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {files} && exec \"$@\"");
        command
            .args(["-c", &limited, "sh"])
            .arg(binary())
            .arg("serve");
        Self::start_at(command, policy, &[], folder, port, &listen).await
    }

    /// Starts one of another build.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_program(program: &Path, policy: &str, folder: &Path) -> Self {
        Self::start_program_at(program, policy, folder, free_port()).await
    }

    /// Likewise, on this port.
    async fn start_program_at(program: &Path, policy: &str, folder: &Path, port: u16) -> Self {
        let listen = format!("127.0.0.1:{port}");
        // Another build may lack the arguments that this one has.
        let mut command = Command::new(program);
        command.arg("serve");
        Self::start_at(command, policy, &[], folder, port, &listen).await
    }

    /// Starts one that serves decisions on a Unix socket at this path.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start_on_socket(policy: &str, folder: &Path, socket: &Path) -> Self {
        let listen = format!("unix:{}", socket.display());
        Self::start_at(own(&[]), policy, &[], folder, 0, &listen).await
    }

    async fn start_at(
        mut command: Command,
        policy: &str,
        environment: &[(&str, String)],
        folder: &Path,
        port: u16,
        listen: &str,
    ) -> Self {
        let admin_port = free_port();
        // In its own folder, because the sidecar watches the folder.
        let file = folder.join(admin_port.to_string()).join("policy.yaml");
        std::fs::create_dir(file.with_file_name("")).expect("a folder for the policy");
        std::fs::write(&file, policy).expect("a policy file");
        command.arg("--policy").arg(&file);
        command.args(["--listen", listen]);
        command.args(["--admin-listen", &format!("127.0.0.1:{admin_port}")]);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let log = folder.join(format!("sidecar-{admin_port}.log"));
        let process = launch(&mut command, &log, admin_port).await;
        Self {
            process,
            command,
            log,
            policy: file,
            port,
            admin_port,
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
        *self = Self::start_program_at(program, &policy, &folder, self.port).await;
        ended.elapsed()
    }

    /// Its metrics as text.
    pub async fn metrics(&self) -> String {
        crate::client::get(&format!("http://127.0.0.1:{}/metrics", self.admin_port))
            .await
            .1
    }

    /// Status and body of a PUT or DELETE of this override.
    ///
    /// # Panics
    /// Nothing answers.
    pub async fn change_override(&self, method: Method, body: String) -> (u16, String) {
        let url = format!("http://127.0.0.1:{}/v1/overrides", self.admin_port);
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

    /// Waits until its store has told it that so many sidecars share the limits: then it knows its share.
    ///
    /// # Panics
    /// It is not told so.
    pub async fn knows_of(&self, sidecars: u32) {
        eventually("the sidecar knows of all", async || {
            self.metric("sluicegate_sidecars").await == f64::from(sidecars)
        })
        .await;
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

/// The command of this build. It exits without a drain unless the arguments set one.
fn own(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("serve").args(arguments);
    if !arguments.contains(&"--drain") {
        command.args(["--drain", "0s"]);
    }
    command
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

/// Path of the program.
pub fn binary() -> std::path::PathBuf {
    // Where cargo puts it for the profile that these tests are built with.
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    repository(&format!("target/{profile}/sluicegate"))
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
