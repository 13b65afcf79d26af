//! envoy/envoy.yaml and envoy/policy.yaml with three changes.
//!
//! The timeouts and the shorter window are longer, so that a stall of the machine does not change exact counts; the filter's
//! timeout is more than twice the store's, so that the sidecar's answer arrives in time. A second rule denies requests without a verdict: the
//! example's only rule allows them.

use std::path::{Path, PathBuf};

use sluicegate_tests::process::repository;

/// A path whose requests get a 503 without a verdict.
pub const CLOSED: &str = "/closed";
/// A path whose requests are let through without a verdict, like all others.
pub const OPEN: &str = "/open";

const SIDECAR: &str = "sidecar: { cluster: sluicegate }";

/// A folder with both files.
pub fn write(folder: &Path) -> PathBuf {
    let folder = folder.join("config");
    std::fs::create_dir(&folder).expect("a folder of our own");
    for (name, changed) in [
        ("envoy.yaml", envoy as fn(&str) -> String),
        ("policy.yaml", policy),
    ] {
        let given = std::fs::read_to_string(repository("envoy").join(name)).expect(name);
        std::fs::write(folder.join(name), changed(&given)).expect("a file of our own");
    }
    folder
}

fn envoy(given: &str) -> String {
    let patient = "sidecar: { cluster: sluicegate, timeout: 2s }";
    replaced(given, SIDECAR, patient)
}

fn policy(given: &str) -> String {
    let patient = replaced(given, "5/2s", "5/50s");
    // A separate subject, so that each rule counts a request once.
    let rule = format!(
        "rules:\n  default:\n    rules:\n      - {{ name: closed, match: {{ path_prefix: {CLOSED} }}, when_unavailable: deny, \
         checks: [{{ limit: per-key, key: [{{ header: x-api-key }}, {{ constant: closed }}] }}] }}\n"
    );
    format!("store_timeout: 500ms\n{patient}{rule}")
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "`{from}` in a file of envoy/"
    );
    text.replace(from, to)
}
