//! What several modules use: the program, the repository's files, and decisions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use sluicegate_protocol::{Check, Decision};

pub use super::table::{has_all, rows};

/// A file or folder of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

pub fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The program, in the repository's root and with nothing in its environment.
pub fn sluicegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(arguments).current_dir(repository(""));
    command.env_clear().stdin(Stdio::null());
    command
}

/// Its exit status, and all that it printed.
pub fn printed(output: &Output) -> (i32, String) {
    let both = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    (output.status.code().unwrap_or(-1), both.concat())
}

/// The same of a command that should end by itself, and is killed if it does not.
pub fn finish(mut command: Command) -> (i32, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    comes_true(|| child.try_wait().unwrap().is_some());
    let _ = child.kill();
    printed(&child.wait_with_output().unwrap())
}

/// Whether it becomes true, in as long as a machine may stall.
pub fn comes_true(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[track_caller]
pub fn has(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in\n{text}");
}

#[track_caller]
pub fn lacks(text: &str, part: &str) {
    assert!(!text.contains(part), "{part:?} in\n{text}");
}

pub fn check(limit: &'static str, key: String, cost: u64, quota: Option<u64>) -> Check<'static> {
    Check {
        limit: limit.into(),
        key: key.into(),
        cost,
        quota,
        within_ms: None,
        most: None,
    }
}

pub fn decision(checks: Vec<Check<'static>>) -> Decision<'static> {
    Decision {
        checks,
        peek: false,
        receipt: false,
        shadow: None,
        traceparent: None,
    }
}
