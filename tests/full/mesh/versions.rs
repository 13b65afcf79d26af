//! The versions that ran.

use serde_json::Value;
use sluicegate_tests_full::documents::text;

use crate::mesh::Mesh;
use crate::tools::Tools;

/// The API server's.
pub fn kubernetes(tools: &Tools) -> String {
    let text = tools.kubectl("version --output=json");
    let version: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
    let version = version["serverVersion"]["gitVersion"].as_str();
    version.expect("the API server's version").to_owned()
}

/// The one that tests/full/mesh/versions pins.
pub fn pinned(name: &str) -> String {
    let file = text("tests/full/mesh/versions");
    let mut lines = file.lines();
    let version = lines.find_map(|line| line.strip_prefix(&format!("{name}_version=")));
    version.expect("a pinned version").to_owned()
}

/// The one of a mesh's proxies.
pub fn envoy(mesh: &Mesh) -> String {
    let text = mesh.pods()[0].get(mesh.admin_port, "/server_info");
    let info: Value = serde_json::from_str(&text).expect("Envoy prints JSON");
    // Its commit, its version, how it was built.
    let version = info["version"]
        .as_str()
        .and_then(|text| text.split('/').nth(1));
    version.expect("Envoy's version").to_owned()
}
