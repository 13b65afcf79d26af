//! The files in tests/full/manifests/values, and what the chart renders from them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::{repository, run};
use sluicegate_tests_full::chart;

/// The namespace of the release in these tests.
pub const NAMESPACE: &str = "shop";

/// The files of values whose chart has the filter: one of each kind.
pub const WITH_FILTER: [&str; 3] = [
    "envoy-gateway.yaml",
    "istio.yaml",
    "kubernetes-deployment.yaml",
];

/// All files of values.
pub fn files() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(repository("tests/full/manifests/values")).expect("a folder");
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The values in a file.
pub fn values(name: &str) -> Value {
    let file = repository("tests/full/manifests/values").join(name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_saphyr::from_str(&text).expect(name)
}

/// What the chart renders from a file.
pub fn rendered(name: &str) -> Vec<Value> {
    chart::render(NAMESPACE, &values(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What `helm install` prints at its end with these values: `helm template` does not, so a copy of the chart has it in a
/// manifest.
pub fn notes(values: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("chart");
    let mut cp = Command::new("cp");
    cp.args(["--recursive", "--dereference"]);
    cp.arg(repository("deploy/helm/sluicegate")).arg(&copy);
    run(&mut cp, chart::INSTALL);
    let manifest = "kind: Notes\ntext: {{ include \"sluicegate.notes\" . | toJson }}\n";
    std::fs::write(copy.join("templates/notes.yaml"), manifest).unwrap();
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let text = chart::template(&copy, NAMESPACE, &[&file], &[]).unwrap();
    let manifests = chart::manifests(&text);
    let is_ours = |manifest: &&Value| manifest["kind"] == "Notes";
    let notes = manifests.iter().find(is_ours).expect("the notes");
    notes["text"].as_str().expect("a text").to_owned()
}
