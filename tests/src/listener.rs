//! An Envoy's listener in a file that Envoy watches, so that a test can replace it.

use std::path::Path;

use serde_json::{Value, json};

use crate::envoy::{Envoy, at};
use crate::process::eventually;
use crate::version::Version;

/// The filter's module, in the listener.
const MODULE: &str = "/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config/vm_config/code/local/filename";

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
    write_listeners(folder, std::slice::from_ref(listener));
}

/// Likewise, with several.
///
/// # Panics
/// It cannot be written.
pub fn write_listeners(folder: &Path, listeners: &[Value]) {
    let file = folder.join("lds.new");
    let text = json!({ "resources": listeners }).to_string();
    std::fs::write(&file, text).expect("a file of the test's own");
    std::fs::rename(file, folder.join("lds.json")).expect("a file of the test's own");
}

/// Names the filter's module in a listener.
pub fn set_filter(listener: &mut Value, version: Version) {
    *at(listener, MODULE) = json!(version.filter());
}

/// Replaces the filter by a change of the listener, as a control plane does.
///
/// # Panics
/// Envoy does not accept it.
pub async fn replace_filter(envoy: &Envoy, folder: &Path, listener: &mut Value, version: Version) {
    set_filter(listener, version);
    replace_listener(envoy, folder, listener).await;
}

/// Replaces the listener by one that differs from it, and waits until it takes requests.
///
/// # Panics
/// Envoy does not accept it.
pub async fn replace_listener(envoy: &Envoy, folder: &Path, listener: &Value) {
    let before = envoy.stat("listener_manager.listener_modified").await;
    write_listener(folder, listener);
    eventually("the listener is replaced", async || {
        envoy.stat("listener_manager.listener_modified").await > before
            && envoy.stat("listener_manager.total_listeners_warming").await == 0
    })
    .await;
}
