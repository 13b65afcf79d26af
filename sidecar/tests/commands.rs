//! The commands as a shell sees them: their exit codes, and what they do when nobody reads on.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test is meant to panic when it fails"
)]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn sluicegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    command.args(arguments).current_dir(root).env_clear();
    command
}

fn run(arguments: &[&str]) -> Output {
    sluicegate(arguments).output().unwrap()
}

#[test]
fn s20_a_reader_that_goes_early_is_no_reason_to_panic() {
    let explain: &[&str] = &[
        "explain",
        "--envoy",
        "envoy/envoy.yaml",
        "--request",
        "GET /",
    ];
    let estimate: &[&str] = &[
        "estimate",
        "--policy",
        "envoy/policy.yaml",
        "--keys",
        "1000",
    ];
    let check: &[&str] = &["check-config", "--envoy", "envoy/envoy.yaml"];
    for arguments in [&["schema"][..], explain, estimate, check] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut child = sluicegate(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        let status = child.wait().unwrap();
        assert!(
            status.success() && said.is_empty(),
            "{arguments:?}: {status} {said}"
        );
    }
    // A full disk is another matter.
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = sluicegate(&["schema"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
}

#[test]
fn s20_wrong_arguments_exit_like_every_other_mistake_of_use() {
    let unknown: &[&str] = &["serve", "--polici", "x"];
    let missing: &[&str] = &["serve"];
    let mode: &[&str] = &["serve", "--policy", "x", "--socket-mode", "999"];
    let none: &[&str] = &["serve", "--policy", "/nonexistent"];
    for arguments in [unknown, missing, mode, none, &["fly"], &[]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
    for arguments in [&["--help"][..], &["serve", "--help"], &["--version"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn s20_a_policy_can_be_checked_without_rules() {
    let output = run(&["check-config", "--policy", "envoy/policy.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("the policy is good"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("policy.yaml");
    std::fs::write(
        &broken,
        "limits: { a: { algorithm: sliding_log, windows: [] } }",
    )
    .unwrap();
    let output = run(&["check-config", "--policy", broken.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("windows"), "{said}");
    assert_eq!(
        run(&["check-config"]).status.code(),
        Some(64),
        "neither was given"
    );
}
