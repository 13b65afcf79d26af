//! The log of the real program: its two formats, its filter, and a log that is not read.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A sidecar whose store is a closed port; killed when dropped.
struct Sidecar {
    process: Child,
    folder: TempDir,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sidecar {
    fn start(stderr: Stdio, folder: TempDir, arguments: &[&str], filter: &str) -> Self {
        let redis = TcpListener::bind("127.0.0.1:0").unwrap();
        let redis = redis.local_addr().unwrap().port();
        let policy = folder.path().join("policy.yaml");
        let text = format!(
            "store: redis://127.0.0.1:{redis}\nlimits: {{ l: {{ algorithm: fixed_window, windows: [{{ quota: 1, per: 1h }}] }} }}\n"
        );
        fs::write(&policy, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command.args(["serve", "--policy"]).arg(&policy);
        for (argument, socket) in [("--listen", "decisions"), ("--admin-listen", "admin")] {
            let socket = folder.path().join(socket);
            command.args([argument, &format!("unix:{}", socket.display())]);
        }
        command.args(arguments).env("RUST_LOG", filter);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.stderr(stderr).spawn().unwrap();
        let sidecar = Self { process, folder };
        eventually("it serves", || {
            UnixStream::connect(sidecar.path("admin")).is_ok()
        });
        sidecar
    }

    /// Starts a sidecar that logs to a file.
    fn logging(arguments: &[&str], filter: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        Self::start(log.into(), folder, arguments, filter)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// Asks for a decision and returns the answer.
    fn decide(&self) -> String {
        let mut stream = UnixStream::connect(self.path("decisions")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let body = r#"{"decisions": [{"checks": [{"limit": "l", "key": "k"}]}]}"#;
        let head = format!(
            "POST /v1/decide HTTP/1.1\r\nhost: s\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Sends SIGTERM and returns the exit status.
    fn end(&mut self) -> Option<i32> {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").arg(id).status().unwrap().success());
        let mut status = None;
        eventually("it ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn s19_rust_log_selects_what_is_logged() {
    let silent = Sidecar::logging(&[], "off");
    silent.decide();
    assert_eq!(silent.log(), "");
    let debug = Sidecar::logging(&[], "warn,sluicegate=info");
    eventually("it logs", || debug.log().contains("serving"));
    assert!(!debug.log().contains('{'), "text: {}", debug.log());

    let refused = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["serve", "--policy", "nowhere"])
        .env("RUST_LOG", "sluicegate=loud")
        .output()
        .unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(64), "{why}");
    assert!(why.contains("RUST_LOG"), "{why}");
}

#[test]
fn s19_the_sidecar_survives_a_closed_standard_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::start(writer.into(), folder, &[], "trace");
    drop(reader);
    for _ in 0..20 {
        assert!(sidecar.decide().contains("unavailable"));
    }
    assert_eq!(sidecar.end(), Some(0));
}

/// The file system that has the log is full: each write fails.
#[test]
fn s19_the_sidecar_survives_a_full_disk() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::start(full.into(), folder, &[], "trace");
    for _ in 0..20 {
        assert!(sidecar.decide().contains("unavailable"));
    }
    assert_eq!(sidecar.end(), Some(0));
}

#[test]
fn s19_an_unread_standard_error_blocks_no_decision() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::start(writer.into(), folder, &[], "trace");
    // Far more lines than a pipe and the queue hold.
    for _ in 0..300 {
        assert!(sidecar.decide().contains("unavailable"));
    }
    assert_eq!(sidecar.end(), Some(0));
}
