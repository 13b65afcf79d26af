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
    /// The connection manager around it, where there is one.
    pub manager: Option<Manager>,
    /// Envoy may then leave a filter in the middle of a request's headers, which holds the body back while they wait.
    pub allow_on_headers_stop_iteration: bool,
    /// The clusters that the file has; `None` where it has none at all.
    pub clusters: Option<Vec<String>>,
}

/// What matters of an HTTP connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manager {
    /// It takes the connection's peer for the client.
    pub use_remote_address: bool,
    /// No header with `_` in its name gets past it.
    pub refuses_underscores: bool,
    /// Tokens are verified after this filter, and not before it.
    pub jwt_authn_behind: bool,
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

const fn plugin(configuration: Lined, manager: Option<Manager>) -> Plugin {
    Plugin {
        configuration,
        manager,
        allow_on_headers_stop_iteration: false,
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

fn is_true(node: &MarkedYaml<'_>, field: &str) -> bool {
    let flag = get(node, field).map(|flag| &flag.data);
    matches!(flag, Some(YamlData::Value(Scalar::Boolean(true))))
}

fn manager(node: &MarkedYaml<'_>) -> Manager {
    let options = get(node, "common_http_protocol_options");
    let action = options.and_then(|options| get(options, "headers_with_underscores_action"));
    Manager {
        use_remote_address: is_true(node, "use_remote_address"),
        refuses_underscores: action
            .and_then(text)
            .is_some_and(|action| matches!(action, "REJECT_REQUEST" | "DROP_HEADER")),
        jwt_authn_behind: false,
    }
}

fn is_jwt_authn(filter: &MarkedYaml<'_>) -> bool {
    let kind = get(filter, "typed_config").and_then(|config| get(config, "@type"));
    let names = [get(filter, "name"), kind].into_iter().flatten();
    names
        .filter_map(text)
        .any(|name| name.contains("jwt_authn"))
}

fn search(node: &MarkedYaml<'_>, manager: Option<Manager>, found: &mut Vec<Plugin>) {
    if let Some(YamlData::Sequence(filters)) = get(node, "http_filters").map(|list| &list.data) {
        let first_jwt = filters.iter().position(is_jwt_authn);
        for (index, filter) in filters.iter().enumerate() {
            let manager = Manager {
                jwt_authn_behind: first_jwt.is_some_and(|first| first > index),
                ..self::manager(node)
            };
            search(filter, Some(manager), found);
        }
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
        let mut plugin = plugin(configuration, manager);
        plugin.allow_on_headers_stop_iteration = is_true(holder, "allow_on_headers_stop_iteration");
        found.push(plugin);
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
            // Filters have been searched above, each with what stands behind it.
            let others = fields
                .iter()
                .filter(|(name, _)| text(name) != Some("http_filters"));
            for (_, value) in others {
                search(value, manager, found);
            }
        }
        YamlData::Sequence(list) => {
            for value in list {
                search(value, manager, found);
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
