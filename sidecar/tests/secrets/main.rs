//! No output of the program has the password of `store`, whatever is wrong with a policy.
//! Finding S21: the parser quoted the lines around an error, and with them the URL of the store.
//!
//! The real program meets each kind of broken file with each form of a Redis URL: at the start, in every command that
//! reads a policy, and on reload, which shows in the log, `/readyz`, `/metrics` and the live page.
//!
//! | module | for |
//! |---|---|
//! | `broken` | the broken policies |
//! | `start` | broken policies, variables and arguments at the start |
//! | `reload` | broken policies on reload |
//! | `redis_echo` | a Redis that repeats the password |
//! | `running` | a running sidecar and its outputs |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod broken;
mod redis_echo;
mod reload;
mod running;
mod start;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use broken::{BROKEN, GOOD, SECRET, STORES};
use tempfile::TempDir;

/// A folder with a policy. The policy is alone in a subfolder, because the sidecar watches its folder.
struct Folder {
    folder: TempDir,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("watched")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn policy(&self) -> PathBuf {
        self.path("watched/policy.yaml")
    }

    /// Replaces the policy atomically, so that no reader sees half of it.
    fn write(&self, policy: &[u8]) {
        fs::write(self.path("new"), policy).unwrap();
        fs::rename(self.path("new"), self.policy()).unwrap();
    }

    fn sluicegate(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command
            .env_remove("SLUICEGATE_STORE")
            .env_remove("RUST_LOG");
        command.args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `serve` on sockets in this folder.
    fn serve(&self) -> Command {
        let mut command = self.sluicegate(&["serve", "--policy"]);
        command.arg(self.policy());
        for (argument, socket) in [("--listen", "decisions"), ("--admin-listen", "admin")] {
            let path = self.path(socket);
            command.args([argument, &format!("unix:{}", path.display())]);
        }
        command
    }
}

/// All broken files: a name, the content, and what the message must contain.
fn broken_files(store: &str) -> Vec<(String, Vec<u8>, &'static [&'static str])> {
    let mut files: Vec<_> = BROKEN
        .iter()
        .map(|(from, to, named)| {
            assert!(GOOD.contains(from), "{from} is not in the file");
            let text = GOOD.replacen(from, to, 1).replace("STORE", store);
            (format!("{from} -> {to}"), text.into_bytes(), *named)
        })
        .collect();
    let mut latin = GOOD.replace("STORE", store).into_bytes();
    latin.extend(b"# caf\xe9\n");
    files.push(("not UTF-8".to_owned(), latin, &["UTF-8"]));
    files
}

/// Fails with all of `leaks` at once.
fn assert_none(leaks: &[String]) {
    assert!(
        leaks.is_empty(),
        "{} failures:\n{}",
        leaks.len(),
        leaks.join("\n")
    );
}

fn stdout_and_stderr(output: &Output) -> String {
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    printed.concat()
}

/// Runs a command that should end by itself; kills it if it does not.
fn run(mut command: Command) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = child.kill();
    child.wait_with_output().unwrap()
}

#[test]
fn s21_the_debug_form_of_a_policy_has_no_password() {
    for store in STORES {
        let text = GOOD.replace("STORE", store);
        let policy = sluicegate::policy::Policy::parse(&text).unwrap();
        assert!(!format!("{policy:?} {policy:#?}").contains(SECRET));
    }
}
