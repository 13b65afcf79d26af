//! `helm template . | sluicegate check-config --envoy -`, as docs/filter.md tells people to run it in CI.

use std::io::{Seek, Write};
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::repository;
use sluicegate_tests_full::chart;

use super::scenes::{self, NAMESPACE, WITH_FILTER};

/// Likewise, of what the chart renders from these values.
fn check_values(values: &Value) -> (Option<i32>, String) {
    let manifests = chart::render(NAMESPACE, values).expect("valid values");
    let documents: Vec<_> = manifests.iter().map(Value::to_string).collect();
    check(&documents.join("\n---\n"))
}

/// The exit status of `check-config` for manifests, and all that it printed.
pub fn check(manifests: &str) -> (Option<i32>, String) {
    let mut input = tempfile::tempfile().unwrap();
    write!(input, "{manifests}").unwrap();
    input.rewind().unwrap();
    let mut command = Command::new(repository("target/debug/sluicegate"));
    let output = chart::run(command.args(["check-config", "--envoy", "-"]).stdin(input));
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    (output.status.code(), printed)
}

#[test]
fn the_chart_is_checked_against_its_own_policy() {
    for file in WITH_FILTER {
        let (status, printed) = check_values(&scenes::values(file));
        assert_eq!(status, Some(0), "{file}: {printed}");
        assert!(!printed.contains("several policies"), "{file}: {printed}");

        let (status, printed) = check_values(&scenes::changed(file, &[scenes::UNKNOWN_LIMIT]));
        assert_eq!(status, Some(64), "{file}: {printed}");
        assert!(printed.contains("no limit `per-kye`"), "{file}: {printed}");
    }
}
