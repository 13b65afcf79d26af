//! envoy/envoy.yaml and envoy/policy.yaml as they are, with three changes.
//!
//! The deadlines are longer, since a machine that stands still for a moment must not make exact counts inexact; the
//! filter's more than twice the store's, so that the sidecar's answer is in time. And there is a second rule, which
//! denies what it cannot meter: the example's only rule allows it.

use std::path::{Path, PathBuf};

use sluicegate_tests::process::repository;

/// Where requests are answered with 503 while nobody can say whether they are over a limit.
pub const CLOSED: &str = "/closed";
/// Where they are let through: everywhere else.
pub const OPEN: &str = "/open";

const RULES: &str = "rules:\n";
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
    let patient = replaced(
        given,
        SIDECAR,
        "sidecar: { cluster: sluicegate, timeout: 2s }",
    );
    let indentation: String = patient
        .lines()
        .find(|line| line.trim_end().ends_with(RULES.trim_end()))
        .map(|line| line.chars().take_while(|c| *c == ' ').collect())
        .unwrap_or_default();
    // A subject of its own, so that a request is counted once by each rule.
    let rule = format!(
        "{RULES}{indentation}  - {{ name: closed, match: {{ path_prefix: {CLOSED} }}, when_unavailable: deny, \
         checks: [{{ limit: per-key, key: [{{ header: x-api-key }}, {{ constant: closed }}] }}] }}\n"
    );
    replaced(&patient, RULES, &rule)
}

fn policy(given: &str) -> String {
    format!("store_timeout: 500ms\n{given}")
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(
        text.matches(from).count(),
        1,
        "`{from}` in envoy/envoy.yaml"
    );
    text.replace(from, to)
}
