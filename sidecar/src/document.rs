//! YAML with the line that each value stands in, and the plugin configurations of Sluicegate in it: in an Envoy file,
//! an Istio WasmPlugin or EnvoyFilter, an Envoy Gateway EnvoyExtensionPolicy, or alone.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Value};

/// A value, and for each field in it, by its path (`rules[0].name`), its line.
#[derive(Debug, Default)]
pub struct Lined {
    /// The value as JSON has it.
    pub value: Value,
    lines: BTreeMap<String, usize>,
}

impl Lined {
    /// The line of a field, or of the nearest thing around it that has one.
    pub fn line(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return self.lines.get("").copied().unwrap_or(1),
            }
        }
    }
}

/// A plugin configuration, and what around it matters to it.
#[derive(Debug)]
pub struct Plugin {
    /// The configuration.
    pub configuration: Lined,
    /// Whether the connection manager around it takes the connection's peer for the client; `None` where there is none.
    pub use_remote_address: Option<bool>,
    /// The clusters that the file has; `None` where it has none at all.
    pub clusters: Option<Vec<String>>,
}

/// Reads all documents of a text with their lines.
///
/// # Errors
/// It is not YAML: what and where.
pub fn read(text: &str) -> Result<Vec<Lined>, String> {
    Ok(load(text)?.iter().map(|node| lined(node, 0)).collect())
}

/// Finds every plugin configuration of Sluicegate in a text.
///
/// # Errors
/// It is not YAML.
pub fn plugins(text: &str) -> Result<Vec<Plugin>, String> {
    let documents = load(text)?;
    let mut found = Vec::new();
    for document in &documents {
        let mut clusters = Vec::new();
        names_of_clusters(document, &mut clusters);
        let mut here = Vec::new();
        if is_ours(document) {
            here.push(plugin(lined(document, 0), None));
        }
        search(document, None, &mut here);
        for plugin in &mut here {
            plugin.clusters = (!clusters.is_empty()).then(|| clusters.clone());
        }
        found.append(&mut here);
    }
    Ok(found)
}

fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, String> {
    MarkedYaml::load_from_str(text).map_err(|error| format!("is not YAML: {error}"))
}

const fn plugin(configuration: Lined, use_remote_address: Option<bool>) -> Plugin {
    Plugin {
        configuration,
        use_remote_address,
        clusters: None,
    }
}

/// A field of a mapping.
fn get<'a, 'i>(node: &'a MarkedYaml<'i>, name: &str) -> Option<&'a MarkedYaml<'i>> {
    let YamlData::Mapping(fields) = &node.data else {
        return None;
    };
    fields
        .iter()
        .find_map(|(key, value)| (text(key) == Some(name)).then_some(value))
}

fn text<'a>(node: &'a MarkedYaml<'_>) -> Option<&'a str> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text),
        _ => None,
    }
}

/// Ours says where its sidecar is; no other plugin's configuration is likely to.
fn is_ours(node: &MarkedYaml<'_>) -> bool {
    get(node, "sidecar").is_some() && get(node, "rules").is_some()
}

/// Something that holds a configuration is ours by what it is called, however broken the configuration.
fn is_called_ours(node: &MarkedYaml<'_>) -> bool {
    let name = |field| get(node, field).and_then(text);
    name("name").is_some_and(|name| name.contains("sluicegate"))
}

fn search(node: &MarkedYaml<'_>, use_remote_address: Option<bool>, found: &mut Vec<Plugin>) {
    let mut use_remote_address = use_remote_address;
    if get(node, "http_filters").is_some() {
        let flag = get(node, "use_remote_address").map(|flag| &flag.data);
        use_remote_address = Some(matches!(flag, Some(YamlData::Value(Scalar::Boolean(true)))));
    }
    let mut add = |holder: &MarkedYaml<'_>, configuration: &MarkedYaml<'_>| {
        let configuration = match text(configuration) {
            // JSON in a string: its lines count from the string's own.
            Some(inner) => match load(inner).ok().and_then(|mut nodes| nodes.pop()) {
                Some(inner) if is_ours(&inner) || is_called_ours(holder) => {
                    lined(&inner, configuration.span.start.line().saturating_sub(1))
                }
                _ => return,
            },
            None if is_ours(configuration) || is_called_ours(holder) => lined(configuration, 0),
            None => return,
        };
        found.push(plugin(configuration, use_remote_address));
    };
    // Envoy: PluginConfig.configuration, a Struct or a StringValue.
    if get(node, "vm_config").is_some()
        && let Some(value) = get(node, "configuration").and_then(|any| get(any, "value"))
    {
        add(node, value);
    }
    // Istio: WasmPlugin.spec.pluginConfig.
    if let Some(configuration) = get(node, "pluginConfig") {
        add(node, configuration);
    }
    // Envoy Gateway: EnvoyExtensionPolicy.spec.wasm[].config.
    if get(node, "code").is_some()
        && let Some(configuration) = get(node, "config")
    {
        add(node, configuration);
    }
    match &node.data {
        YamlData::Mapping(fields) => {
            for value in fields.values() {
                search(value, use_remote_address, found);
            }
        }
        YamlData::Sequence(list) => {
            for value in list {
                search(value, use_remote_address, found);
            }
        }
        _ => {}
    }
}

fn names_of_clusters(node: &MarkedYaml<'_>, names: &mut Vec<String>) {
    if let Some(YamlData::Sequence(clusters)) = get(node, "static_resources")
        .and_then(|resources| get(resources, "clusters"))
        .map(|clusters| &clusters.data)
    {
        let given = clusters.iter().filter_map(|cluster| get(cluster, "name"));
        names.extend(given.filter_map(text).map(str::to_owned));
    }
}

fn lined(node: &MarkedYaml<'_>, before: usize) -> Lined {
    let mut lines = BTreeMap::new();
    lines.insert(String::new(), node.span.start.line() + before);
    let value = convert(node, "", before, &mut lines);
    Lined { value, lines }
}

fn convert(
    node: &MarkedYaml<'_>,
    path: &str,
    before: usize,
    lines: &mut BTreeMap<String, usize>,
) -> Value {
    match &node.data {
        YamlData::Value(Scalar::Boolean(flag)) => (*flag).into(),
        YamlData::Value(Scalar::Integer(number)) => (*number).into(),
        YamlData::Value(Scalar::FloatingPoint(number)) => number.into_inner().into(),
        YamlData::Value(Scalar::String(text)) => text.as_ref().into(),
        YamlData::Sequence(list) => {
            let entries = list.iter().enumerate().map(|(index, entry)| {
                let path = format!("{path}[{index}]");
                lines.insert(path.clone(), entry.span.start.line() + before);
                convert(entry, &path, before, lines)
            });
            Value::Array(entries.collect())
        }
        YamlData::Mapping(fields) => {
            let mut object = Map::new();
            for (key, value) in fields {
                let name = text(key).unwrap_or_default();
                let path = if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}.{name}")
                };
                // The key's line: a value may begin in the next.
                lines.insert(path.clone(), key.span.start.line() + before);
                object.insert(name.to_owned(), convert(value, &path, before, lines));
            }
            Value::Object(object)
        }
        _ => Value::Null,
    }
}
