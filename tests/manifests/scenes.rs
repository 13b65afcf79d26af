//! The files in tests/manifests/values, and what the chart renders from them.

use std::path::PathBuf;

use serde_json::Value;
use sluicegate_tests::chart;
use sluicegate_tests::process::repository;

/// The namespace of the release in these tests.
pub const NAMESPACE: &str = "shop";

/// All files of values.
pub fn files() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(repository("tests/manifests/values")).expect("a folder");
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The values in a file.
pub fn values(name: &str) -> Value {
    let file = repository("tests/manifests/values").join(name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_saphyr::from_str(&text).expect(name)
}

/// What the chart renders from a file.
pub fn rendered(name: &str) -> Vec<Value> {
    chart::render(NAMESPACE, &values(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
