//! The versions that ran.

use serde_json::Value;
use sluicegate_tests::process::repository;

use crate::mesh::Mesh;
use crate::tools::Tools;

/// The API server's.
pub fn kubernetes(tools: &Tools) -> String {
    let text = tools.kubectl(&["version", "--output=json"]);
    let version: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
    let version = version["serverVersion"]["gitVersion"].as_str();
    version.expect("the API server's version").to_owned()
}

/// The one that tests/full/mesh/versions pins.
pub fn pinned(name: &str) -> String {
    let file = std::fs::read_to_string(repository("tests/full/mesh/versions")).expect("a file");
    let mut lines = file.lines();
    let version = lines.find_map(|line| line.strip_prefix(&format!("{name}_version=")));
    version.expect("a pinned version").to_owned()
}

/// The one of a mesh's proxies.
pub fn envoy(mesh: &Mesh) -> String {
    let text = mesh.pods()[0].get(mesh.admin_port, "/server_info");
    let info: Value = serde_json::from_str(&text).expect("Envoy prints JSON");
    // Its commit, its version, how it was built.
    let version = info["version"].as_str().expect("Envoy's version");
    version
        .split('/')
        .nth(1)
        .expect("Envoy's version")
        .to_owned()
}
