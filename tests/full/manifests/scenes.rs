//! The files in tests/full/manifests/values, and what the chart renders from them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::{repository, run};
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::yaml;

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
    yaml(&format!("tests/full/manifests/values/{name}"))
}

/// A limit that the policy lacks.
pub const UNKNOWN_LIMIT: &str = "policy.rules: { more: { rules: [{ name: more, when_unavailable: deny, \
    checks: [{ limit: per-kye, key: [{ address: {} }] }] }] } }";

/// The values in a file with changes: each a path and a value as YAML.
pub fn changed(name: &str, changes: &[&str]) -> Value {
    let mut values = values(name);
    for change in changes {
        let (path, value) = change.split_once(": ").expect("a path and a value");
        let mut place = &mut values;
        for part in path.split('.') {
            place = match part.parse::<usize>() {
                Ok(index) => &mut place[index],
                Err(_) => &mut place[part],
            };
        }
        *place = serde_saphyr::from_str(value).expect(change);
    }
    values
}

/// What the chart renders from a file.
pub fn rendered(name: &str) -> Vec<Value> {
    rendered_with(name, &[])
}

/// Likewise, with changes.
pub fn rendered_with(name: &str, changes: &[&str]) -> Vec<Value> {
    let rendered = chart::render(NAMESPACE, &changed(name, changes));
    rendered.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The pod that has the sidecar, with its labels and annotations: whatever changes in it replaces the pods.
pub fn template(manifests: &[Value]) -> Value {
    let gateway = "/spec/provider/kubernetes/envoyDeployment/patch/value/spec/template";
    let found = manifests.iter().find_map(|manifest| {
        Some(match manifest["kind"].as_str()? {
            "Deployment" => manifest["spec"]["template"].clone(),
            "EnvoyProxy" => manifest.pointer(gateway)?.clone(),
            "ConfigMap" => injection(manifest)?.1,
            _ => return None,
        })
    });
    found.expect("pods with the sidecar")
}

/// The name and the pod's part of istiod's injection template.
pub fn injection(manifest: &Value) -> Option<(String, Value)> {
    let values: Value = serde_saphyr::from_str(manifest["data"]["values.yaml"].as_str()?).unwrap();
    let templates = values["sidecarInjectorWebhook"]["templates"].as_object()?;
    assert_eq!(templates.len(), 1);
    let (name, text) = templates.iter().next()?;
    let text = text.as_str()?;
    // istiod takes it for a Go template.
    assert!(!text.contains("{{"), "{text}");
    Some((name.clone(), serde_saphyr::from_str(text).expect("YAML")))
}

/// A list of texts.
pub fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|text| text.as_str().expect("a text")).collect()
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
