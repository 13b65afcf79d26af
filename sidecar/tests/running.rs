//! A running sidecar on sockets in a folder of its own, and everything that it outputs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::support::{comes_true, sluicegate};

/// A folder with a policy, which is alone in a subfolder.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("watched")).unwrap();
        Self(folder)
    }

    pub fn with(policy: &str) -> Self {
        let folder = Self::new();
        folder.write(policy.as_bytes());
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn policy(&self) -> PathBuf {
        self.path("watched/policy.yaml")
    }

    /// Replaces the policy atomically, so that no reader sees half of it.
    pub fn write(&self, policy: &[u8]) {
        fs::write(self.path("new"), policy).unwrap();
        fs::rename(self.path("new"), self.policy()).unwrap();
    }

    /// Runs `serve` on sockets in this folder.
    pub fn serve(&self) -> Command {
        let mut command = sluicegate(&["serve", "--policy"]);
        command.arg(self.policy());
        for (argument, socket) in [("--listen", "decisions"), ("--admin-listen", "admin")] {
            let path = self.path(socket);
            command.args([argument, &format!("unix:{}", path.display())]);
        }
        command
    }
}

/// A running sidecar, killed when dropped.
pub struct Running<'a> {
    process: Child,
    folder: &'a Folder,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl<'a> Running<'a> {
    /// Starts a sidecar that logs to a file.
    pub fn start(folder: &'a Folder, command: Command) -> Self {
        let running = Self::launch(folder, command);
        running.serves();
        running
    }

    /// The same, without waiting until it serves.
    pub fn launch(folder: &'a Folder, mut command: Command) -> Self {
        let log = folder.path("log");
        let file = File::options().create(true).append(true).open(log);
        let file = file.unwrap();
        command.stdout(file.try_clone().unwrap());
        let process = command.stderr(file).spawn().unwrap();
        Self { process, folder }
    }

    pub fn logging_to(stderr: Stdio, folder: &'a Folder, mut command: Command) -> Self {
        let process = command.stderr(stderr).spawn().unwrap();
        let running = Self { process, folder };
        running.serves();
        running
    }

    fn serves(&self) {
        let serves = || UnixStream::connect(self.folder.path("admin")).is_ok();
        self.eventually("it serves", serves);
    }

    /// Has it read its policy now and not within half a second.
    pub fn reread(&self) {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::HUP).unwrap();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path("log")).unwrap_or_default()
    }

    pub fn forget_log(&self) {
        fs::write(self.folder.path("log"), "").unwrap();
    }

    pub fn eventually(&self, what: &str, done: impl FnMut() -> bool) {
        assert!(comes_true(done), "{what}: never\n{}", self.log());
    }

    fn send(&self, socket: &str, bytes: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.folder.path(socket)).unwrap();
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    }

    pub fn ask(&self, path: &str) -> UnixStream {
        let head = format!("GET {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n");
        self.send("admin", &head)
    }

    /// Posts to one of its sockets and returns the answer.
    pub fn post(&self, socket: &str, path: &str, headers: &str, body: &str) -> String {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: s\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        );
        let mut answer = String::new();
        let mut stream = self.send(socket, &(head + body));
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        self.ask(path).read_to_string(&mut answer).unwrap();
        answer
    }

    /// All of its outputs, by name.
    pub fn everything(&self) -> [(&'static str, String); 5] {
        [
            ("/readyz", self.get("/readyz")),
            ("/metrics", self.get("/metrics")),
            ("/v1/top", self.get("/v1/top")),
            ("the live page", self.get("/page/snapshot")),
            ("the log", self.log()),
        ]
    }

    /// Sends SIGTERM and returns the exit status.
    pub fn end(mut self) -> Option<i32> {
        // A shell's own `kill`: a bare Debian has no other.
        let kill = format!("kill {}", self.process.id());
        let killed = Command::new("sh").args(["-c", &kill]).status();
        assert!(killed.unwrap().success());
        assert!(comes_true(|| self.process.try_wait().unwrap().is_some()));
        self.process.wait().unwrap().code()
    }
}
