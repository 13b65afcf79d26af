//! An Envoy's listener in a file that Envoy watches, so that a test can replace it.

use std::path::Path;

use serde_json::{Value, json};

use crate::envoy::at;

/// Moves the listener from a configuration to such a file.
///
/// # Panics
/// The configuration has no listener, or the file cannot be written.
pub fn from_file(config: &mut Value, folder: &Path) -> Value {
    let mut listener = at(config, "/static_resources/listeners/0").take();
    listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    write_listener(folder, &listener);
    let resources = at(config, "/static_resources").as_object_mut();
    resources.expect("an object").remove("listeners");
    config["node"] = json!({ "id": "n", "cluster": "c" });
    config["dynamic_resources"] = json!({ "lds_config": {
        "path_config_source": { "path": folder.join("lds.json") }, "resource_api_version": "V3" } });
    listener
}

/// Replaces the file by a rename, which Envoy watches for.
///
/// # Panics
/// It cannot be written.
pub fn write_listener(folder: &Path, listener: &Value) {
    let file = folder.join("lds.new");
    let text = json!({ "resources": [listener] }).to_string();
    std::fs::write(&file, text).expect("a file of the test's own");
    std::fs::rename(file, folder.join("lds.json")).expect("a file of the test's own");
}
