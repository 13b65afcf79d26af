//! `sluicegate explain` for a path that upstreams may read in several ways.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

use std::process::Command;

const CONFIGURATION: &str = r#"
sidecar: { cluster: sluicegate }
UPSTREAM
rules:
  - name: public
    match: { path_prefix: /public/ }
    stop: true
    checks: [{ limit: lenient, key: [{ constant: c }] }]
    when_unavailable: allow
  - name: search
    match: { path_prefix: /search/, query: [{ name: debug, present: true }] }
    checks: [{ limit: strict, key: [{ constant: c }] }]
    when_unavailable: allow
"#;

fn explain(upstream: &str, target: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("filter.yaml");
    std::fs::write(&file, CONFIGURATION.replace("UPSTREAM", upstream)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["explain", "--request", &format!("GET {target}"), "--envoy"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

// F16
#[test]
fn explain_lists_the_readings_of_a_path_and_which_rules_match_each() {
    let printed = explain("", "/search/..%2Fpublic%2Fx?debug;y");
    for line in [
        "  1: /search/..%2Fpublic%2Fx\n",
        "  2: /search/..%2Fpublic%2Fx, `debug` is ``\n",
        "  3: /search/../public/x\n",
        "  5: /public/x\n",
        "rule `public` matches in 5, 6\n",
        "rule `search` matches in 2, 4\n",
        "limit `lenient`",
        "limit `strict`",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

#[test]
fn a_path_with_one_reading_takes_one_line_per_rule() {
    for (upstream, target) in [
        ("", "/public/x"),
        ("upstream_paths: nginx", "/search/..%2Fpublic%2Fx"),
    ] {
        let printed = explain(upstream, target);
        assert!(
            printed.starts_with("rule `public` matches\nrule `search` does not match\n"),
            "{printed}"
        );
    }
}
