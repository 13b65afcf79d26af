//! The Helm chart, rendered by Helm without a cluster.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use sluicegate_tests::process::repository;

/// What installs the tools of these tests.
pub const INSTALL: &str = "install it: tests/setup test";

/// The release's name, and so the name of most of what the chart makes.
pub const RELEASE: &str = "sluicegate";

/// Renders the chart; `Err` is what Helm says.
pub fn render(namespace: &str, values: &Value) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("a file");
    let chart = repository("deploy/helm/sluicegate");
    Ok(manifests(&template(&chart, namespace, &[&file], &[])?))
}

/// What `helm template` prints for a chart (a folder or a package), files of values and further arguments.
pub fn template(
    chart: &Path,
    namespace: &str,
    files: &[&Path],
    more: &[&str],
) -> Result<String, String> {
    let mut command = helm();
    command.args(["template", RELEASE]).arg(chart);
    command.args(["--namespace", namespace]);
    // A Helm that `go install` built takes Kubernetes for 1.20.
    command.args(["--kube-version", "1.36.0"]);
    for file in files {
        command.arg("--values").arg(file);
    }
    let output = run(command.args(more));
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).expect("Helm prints UTF-8"))
    } else {
        Err(errors.into_owned())
    }
}

/// The manifests in what `helm template` prints.
///
/// # Panics
/// It is not YAML.
pub fn manifests(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("Helm prints YAML");
    let is_filled = |document: &Value| !document.is_null();
    documents.into_iter().filter(is_filled).collect()
}

/// The manifest of this kind and name.
///
/// # Panics
/// There is none.
pub fn manifest<'a>(manifests: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |manifest: &&Value| manifest["kind"] == kind && manifest["metadata"]["name"] == name;
    let found = manifests.iter().find(is);
    found.unwrap_or_else(|| panic!("the chart makes no {kind} {name}"))
}

/// A YAML file in a ConfigMap.
///
/// # Panics
/// There is none.
pub fn file(manifests: &[Value], name: &str, file: &str) -> Value {
    let text = manifest(manifests, "ConfigMap", name)["data"][file].as_str();
    let text = text.unwrap_or_else(|| panic!("no {file} in {name}"));
    serde_saphyr::from_str(text).expect("YAML")
}

/// A command of the Helm in .tools.
pub fn helm() -> Command {
    Command::new(repository(".tools/helm"))
}

/// Runs a command.
///
/// # Panics
/// It is not installed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}"))
}
