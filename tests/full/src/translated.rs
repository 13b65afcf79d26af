//! What control planes make of the chart: Envoy configurations in tests/full/manifests/translated, which `make mesh` captures
//! from its proxies (`SLUICEGATE_WRITE=1`) and `make manifests` runs in an Envoy, without a control plane.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::chart;
use sluicegate_tests::process::repository;

/// How fixtures are renewed.
pub const RENEW: &str = "run: SLUICEGATE_WRITE=1 make mesh";

/// Where the filter is, in a fixture and in this repository.
pub const MODULE: &str = "target/filter/sluicegate.wasm";

/// One mesh's fixture.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translated {
    /// The namespace of the chart's release.
    pub namespace: String,
    /// The values of the chart's release.
    pub values: Value,
    /// What the chart rendered for the control plane: see [`inputs`].
    pub inputs: BTreeMap<String, Value>,
    /// The listener with the filter, its clusters and the tags of statistics, as an Envoy configuration.
    pub envoy: Value,
}

impl Translated {
    /// Reads the fixture of a mesh.
    ///
    /// # Panics
    /// There is none.
    pub fn read(mesh: &str) -> Self {
        let file = file(mesh);
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}; {RENEW}", file.display()));
        serde_json::from_str(&text).expect("a fixture")
    }

    /// Writes the fixture of a mesh: a release's namespace and values, and what the admin interface of one of its proxies
    /// answers to `/config_dump?include_eds`.
    ///
    /// # Panics
    /// The proxy has no listener with the filter.
    pub fn write(mesh: &str, namespace: &str, values: Value, dump: &Value) {
        let rendered = chart::render(namespace, &values).expect("the chart accepts these values");
        let translated = Self {
            namespace: namespace.to_owned(),
            inputs: inputs(&rendered),
            values,
            envoy: alone(dump),
        };
        let file = file(mesh);
        std::fs::create_dir_all(file.with_file_name("")).expect("a folder");
        let text = serde_json::to_string_pretty(&translated).expect("JSON");
        std::fs::write(&file, text + "\n").expect("a file");
    }
}

fn file(mesh: &str) -> PathBuf {
    repository("tests/full/manifests/translated").join(format!("{mesh}.json"))
}

/// The parts of manifests that decide what a control plane tells Envoy, by kind and name. Not the images: the filter's is
/// Envoy's affair only when it is fetched.
pub fn inputs(rendered: &[Value]) -> BTreeMap<String, Value> {
    const READ: [&str; 7] = [
        "ClientTrafficPolicy",
        "EnvoyExtensionPolicy",
        "EnvoyFilter",
        "EnvoyPatchPolicy",
        "EnvoyProxy",
        "ServiceEntry",
        "WasmPlugin",
    ];
    let read = rendered.iter().filter_map(|manifest| {
        let kind = manifest["kind"]
            .as_str()
            .filter(|kind| READ.contains(kind))?;
        let mut spec = manifest["spec"].clone();
        if kind == "EnvoyProxy" {
            spec = spec["bootstrap"].take();
        }
        for field in ["code", "url", "sha256", "imagePullPolicy"] {
            drop_fields(field, &mut spec);
        }
        let name = manifest["metadata"]["name"].as_str().expect("a name");
        Some((format!("{kind} {name}"), spec))
    });
    read.collect()
}

fn drop_fields(name: &str, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove(name);
            fields
                .values_mut()
                .for_each(|value| drop_fields(name, value));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| drop_fields(name, value)),
        _ => {}
    }
}

/// Makes a dump of Envoy's configuration run alone: the first filter chain with the filter, its routes, and its clusters.
/// The sidecar's cluster stays as the control plane wrote it; the upstreams' become 127.0.0.1:8080.
fn alone(dump: &Value) -> Value {
    let dump = Dump(dump);
    let mut manager = dump
        .managers()
        .into_iter()
        .find_map(|manager| dump.with_filter(manager))
        .expect("a proxy that has a listener with the filter");
    if let Some(rds) = manager.remove("rds") {
        let name = rds["route_config_name"].as_str().expect("a route's name");
        manager.insert("route_config".to_owned(), dump.routes(name));
    }
    let mut targets = Vec::new();
    collect("cluster", &manager["route_config"], &mut targets);
    // Logs, traces and TLS go elsewhere.
    for field in ["access_log", "access_log_options", "tracing"] {
        manager.remove(field);
    }
    let mut clusters = vec![dump.sidecar(&manager)];
    targets.sort();
    targets.dedup();
    clusters.extend(targets.iter().map(|name| {
        json!({
            "name": name, "type": "STATIC",
            "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": {
                "socket_address": { "address": "127.0.0.1", "port_value": 8080 } } } }] }] },
        })
    }));
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 9901 } } },
        "stats_config": dump.section("BootstrapConfigDump")["bootstrap"]["stats_config"],
        "static_resources": {
            "listeners": [{
                "name": "ingress",
                "address": { "socket_address": { "address": "127.0.0.1", "port_value": 10000 } },
                "filter_chains": [{ "filters": [{ "name": MANAGER, "typed_config": manager }] }],
            }],
            "clusters": clusters,
        },
    })
}

const MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// The answer to `/config_dump?include_eds`.
struct Dump<'a>(&'a Value);

impl Dump<'_> {
    /// A section; `Null` if there is none.
    fn section(&self, kind: &str) -> &Value {
        let mut sections = self.0["configs"].as_array().into_iter().flatten();
        let kind = format!("type.googleapis.com/envoy.admin.v3.{kind}");
        let is = |section: &&Value| section["@type"] == kind;
        sections.find(is).unwrap_or(&Value::Null)
    }

    /// The entries of a section's lists of this name, static and dynamic ones alike.
    fn entries(&self, kind: &str, lists: &[&str]) -> Vec<&Value> {
        let section = self.section(kind);
        let lists = lists.iter().filter_map(|list| section[list].as_array());
        lists.flatten().collect()
    }

    /// The connection managers of all filter chains.
    fn managers(&self) -> Vec<Map<String, Value>> {
        let mut found = Vec::new();
        let lists = ["dynamic_listeners", "static_listeners"];
        for entry in self.entries("ListenersConfigDump", &lists) {
            let listener = match &entry["listener"] {
                Value::Null => &entry["active_state"]["listener"],
                listener => listener,
            };
            let chains = listener["filter_chains"].as_array().into_iter().flatten();
            for chain in chains.chain([&listener["default_filter_chain"]]) {
                let filters = chain["filters"].as_array().into_iter().flatten();
                let managers = filters.filter(|filter| filter["name"] == MANAGER);
                found.extend(managers.filter_map(|filter| filter["typed_config"].as_object()));
            }
        }
        found.into_iter().cloned().collect()
    }

    /// The manager with its discovered filters filled in, if one of them is ours; with our module in place of theirs.
    fn with_filter(&self, mut manager: Map<String, Value>) -> Option<Map<String, Value>> {
        let mut ours = false;
        for filter in manager.get_mut("http_filters")?.as_array_mut()? {
            if filter["config_discovery"].is_object() {
                let name = filter["name"].clone();
                let found = self.entries("EcdsConfigDump", &["ecds_filters"]);
                let found = found.iter().map(|entry| &entry["ecds_filter"]);
                if let Some(found) = { found }.find(|found| found["name"] == name) {
                    *filter = json!({ "name": name, "typed_config": found["typed_config"] });
                }
            }
            if let Some(plugin) = filter.pointer_mut("/typed_config/config")
                && plugin["configuration"].to_string().contains("rule_sets")
            {
                ours = true;
                plugin["vm_config"]["code"] = json!({ "local": { "filename": MODULE } });
            }
        }
        ours.then_some(manager)
    }

    /// A route configuration.
    fn routes(&self, name: &str) -> Value {
        let lists = ["dynamic_route_configs", "static_route_configs"];
        let entries = self.entries("RoutesConfigDump", &lists);
        let mut routes = entries.iter().map(|entry| &entry["route_config"]);
        let routes = routes.find(|routes| routes["name"] == name);
        without_type(routes.unwrap_or_else(|| panic!("a proxy with the routes {name}")))
    }

    /// The cluster that the filter's configuration names, with its endpoints.
    fn sidecar(&self, manager: &Map<String, Value>) -> Value {
        let lists = ["static_clusters", "dynamic_active_clusters"];
        let clusters = self.entries("ClustersConfigDump", &lists);
        let text = Value::Object(manager.clone()).to_string();
        let named = |cluster: &&Value| {
            let name = cluster["name"].as_str().unwrap_or_default();
            name.contains("sluicegate") && text.contains(name)
        };
        let mut clusters = clusters.iter().map(|entry| &entry["cluster"]);
        let cluster = clusters.find(named);
        let mut cluster = without_type(cluster.expect("the sidecar's cluster"));
        if cluster["type"] == "EDS" {
            let lists = ["dynamic_endpoint_configs", "static_endpoint_configs"];
            let entries = self.entries("EndpointsConfigDump", &lists);
            let mut endpoints = entries.iter().map(|entry| &entry["endpoint_config"]);
            let endpoints = endpoints.find(|entry| entry["cluster_name"] == cluster["name"]);
            cluster["type"] = json!("STATIC");
            cluster["load_assignment"] = without_type(endpoints.expect("the sidecar's endpoint"));
            if let Value::Object(fields) = &mut cluster {
                fields.remove("eds_cluster_config");
            }
        }
        cluster
    }
}

fn without_type(value: &Value) -> Value {
    let mut value = value.clone();
    if let Value::Object(fields) = &mut value {
        fields.remove("@type");
    }
    value
}

/// The texts in fields of this name.
fn collect(name: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                match value {
                    Value::String(text) if field == name => found.push(text.clone()),
                    value => collect(name, value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(name, value, found)),
        _ => {}
    }
}
