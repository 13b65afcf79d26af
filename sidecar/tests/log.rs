//! The log of the real program: its formats, its filter, and a log that is not read.

use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;

use super::running::{Folder, Running};
use super::support::{has, lacks, printed, sluicegate};

/// A policy whose store is a closed port.
fn without_store() -> Folder {
    let redis = TcpListener::bind("127.0.0.1:0").unwrap();
    let redis = redis.local_addr().unwrap();
    Folder::with(&format!(
        "store: redis://{redis}\nlimits: {{ l: {{ algorithm: fixed_window, windows: [{{ quota: 1, per: 1h }}] }} }}\n"
    ))
}

fn decide(sidecar: &Running<'_>) -> String {
    let body = r#"{"decisions": [{"checks": [{"limit": "l", "key": "k"}]}]}"#;
    sidecar.post("decisions", "/v1/decide", "", body)
}

#[test]
fn rust_log_selects_what_is_logged() {
    let folders = [without_store(), without_store()];
    let logging = |folder: usize, filter: &str| {
        let mut command = folders[folder].serve();
        command.env("RUST_LOG", filter);
        Running::start(&folders[folder], command)
    };
    let silent = logging(0, "off");
    decide(&silent);
    assert_eq!(silent.log(), "");
    let some = logging(1, "warn,sluicegate=info");
    some.eventually("it logs", || some.log().contains("serving"));
    lacks(&some.log(), "{");

    let mut refused = sluicegate(&["serve", "--policy", "nowhere"]);
    refused.env("RUST_LOG", "sluicegate=loud");
    let (status, why) = printed(&refused.output().unwrap());
    assert_eq!(status, 64, "{why}");
    has(&why, "RUST_LOG");
}

/// A sidecar that logs all it can to there decides, and ends when it is told to.
fn serves_with_a_log(stderr: Stdio, decisions: usize, then: impl FnOnce()) {
    let folder = without_store();
    let mut command = folder.serve();
    command.args(["--drain", "0s"]);
    command.env("RUST_LOG", "trace").stdout(Stdio::null());
    let sidecar = Running::logging_to(stderr, &folder, command);
    then();
    for _ in 0..decisions {
        has(&decide(&sidecar), "unavailable");
    }
    assert_eq!(sidecar.end(), Some(0));
}

#[test]
fn the_sidecar_survives_a_closed_standard_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    serves_with_a_log(writer.into(), 20, || drop(reader));
}

/// The file system that has the log is full: each write fails.
#[test]
fn the_sidecar_survives_a_full_disk() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    serves_with_a_log(full.into(), 20, || {});
}

#[test]
fn an_unread_standard_error_blocks_no_decision() {
    let (_reader, writer) = std::io::pipe().unwrap();
    // Far more lines than a pipe and the queue hold.
    serves_with_a_log(writer.into(), 300, || {});
}

#[cfg(not(feature = "otlp"))]
#[test]
fn a_sidecar_without_traces_says_so_if_they_are_turned_on() {
    let folder = without_store();
    let mut command = folder.serve();
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@host");
    let sidecar = Running::start(&folder, command);
    let told =
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but this sidecar was built without the feature `otlp`";
    sidecar.eventually("it says so", || sidecar.log().contains(told));
    lacks(&sidecar.log(), "secret");
}
