//! Captures what a control plane made of the chart, for the fast test: tests/full/manifests runs it in an Envoy of its own.

use serde_json::Value;
use sluicegate_tests_full::translated::Translated;

use crate::mesh::{Mesh, RELEASE};

/// Whether `SLUICEGATE_WRITE` says that this run writes into the repository.
pub fn writes() -> bool {
    std::env::var_os("SLUICEGATE_WRITE").is_some()
}

/// Writes tests/full/manifests/translated/NAME.json, if it does.
pub fn capture(mesh: &Mesh, name: &str) {
    if !writes() {
        return;
    }
    let release = format!("{RELEASE} --namespace {}", mesh.namespace);
    let values = mesh
        .tools
        .helm(&format!("get values {release} --output=json"));
    let values = serde_json::from_str(&values).expect("helm prints JSON");
    let dump = mesh.pods()[0].get(mesh.admin_port, "/config_dump?include_eds");
    let dump: Value = serde_json::from_str(&dump).expect("Envoy prints JSON");
    Translated::write(name, mesh.namespace, values, &dump);
}
