//! YAML with line numbers, and Sluicegate's plugin configurations in it: in an Envoy file, an Istio WasmPlugin or
//! EnvoyFilter, an Envoy Gateway EnvoyExtensionPolicy, or alone.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Value};

/// A value, and the line of each field in it, by the field's path (`rules[0].name`).
#[derive(Debug, Default)]
pub struct ValueWithLines {
    /// The value as JSON.
    pub value: Value,
    lines: BTreeMap<String, usize>,
}

impl ValueWithLines {
    /// The line of a field, or of the nearest parent that has one.
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

/// A plugin configuration, and the settings around it that matter to it.
#[derive(Debug)]
pub struct Plugin {
    /// The configuration.
    pub configuration: ValueWithLines,
    /// The connection manager around it, if any.
    pub manager: Option<Manager>,
    /// Envoy may then pause a request after its headers, and buffers the body meanwhile.
    pub allow_on_headers_stop_iteration: bool,
    /// The names of the file's clusters; `None` if it has none.
    pub clusters: Option<Vec<String>>,
    /// The namespaces of dynamic metadata into which a filter of the file copies what clients send.
    pub copied_namespaces: Vec<String>,
}

/// The relevant settings of an HTTP connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The client's address is that of the connection's peer.
    pub use_remote_address: bool,
    /// It drops or rejects headers with `_` in their names.
    pub rejects_underscores: bool,
    /// Tokens are verified after this filter.
    pub jwt_authn_follows: bool,
}

/// Finds every plugin configuration of Sluicegate in a text.
///
/// # Errors
/// The text is not YAML.
pub fn plugins(text: &str) -> Result<Vec<Plugin>, String> {
    let documents = load(text)?;
    let mut found = Vec::new();
    for document in &documents {
        let mut clusters = Vec::new();
        cluster_names(document, &mut clusters);
        let mut copied = COPYING.map(str::to_owned).to_vec();
        copied_namespaces(document, false, &mut copied);
        let mut here = Vec::new();
        if is_sluicegate(document) {
            here.push(plugin(with_lines(document, 0), None));
        }
        search(document, None, &mut here);
        for plugin in &mut here {
            plugin.clusters = (!clusters.is_empty()).then(|| clusters.clone());
            plugin.copied_namespaces.clone_from(&copied);
        }
        found.append(&mut here);
    }
    Ok(found)
}

fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, String> {
    MarkedYaml::load_from_str(text).map_err(|error| format!("is not YAML: {error}"))
}

const fn plugin(configuration: ValueWithLines, manager: Option<Manager>) -> Plugin {
    Plugin {
        configuration,
        manager,
        allow_on_headers_stop_iteration: false,
        clusters: None,
        copied_namespaces: Vec::new(),
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

/// Our configurations have `sidecar` and `rules`; another plugin's are unlikely to.
fn is_sluicegate(node: &MarkedYaml<'_>) -> bool {
    get(node, "sidecar").is_some() && get(node, "rules").is_some()
}

/// Recognizes the holder of a configuration by its name, so that a broken configuration is found too.
fn is_named_sluicegate(node: &MarkedYaml<'_>) -> bool {
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
        rejects_underscores: action
            .and_then(text)
            .is_some_and(|action| matches!(action, "REJECT_REQUEST" | "DROP_HEADER")),
        jwt_authn_follows: false,
    }
}

fn is_jwt_authn(filter: &MarkedYaml<'_>) -> bool {
    is_called(filter, "jwt_authn")
}

/// Whether a filter has this in its name or in its type's.
fn is_called(filter: &MarkedYaml<'_>, what: &str) -> bool {
    let kind = get(filter, "typed_config").and_then(|config| get(config, "@type"));
    let mut names = [get(filter, "name"), kind].into_iter().flatten();
    names.any(|name| text(name).is_some_and(|name| name.contains(what)))
}

/// Filters that copy what clients send into dynamic metadata, and the namespaces that they write to by default.
const COPYING: [&str; 2] = [
    "envoy.filters.http.header_to_metadata",
    "envoy.filters.http.json_to_metadata",
];

/// The other namespaces that such filters write to.
fn copied_namespaces(node: &MarkedYaml<'_>, inside: bool, found: &mut Vec<String>) {
    let copies = ["header_to_metadata", "json_to_metadata"];
    let inside = inside || copies.iter().any(|copies| is_called(node, copies));
    match &node.data {
        YamlData::Mapping(fields) => {
            for (name, value) in fields {
                if inside && text(name) == Some("metadata_namespace") {
                    found.extend(text(value).map(str::to_owned));
                }
                copied_namespaces(value, inside, found);
            }
        }
        YamlData::Sequence(list) => {
            let each = |value| copied_namespaces(value, inside, found);
            list.iter().for_each(each);
        }
        _ => {}
    }
}

fn search(node: &MarkedYaml<'_>, manager: Option<Manager>, found: &mut Vec<Plugin>) {
    if let Some(YamlData::Sequence(filters)) = get(node, "http_filters").map(|list| &list.data) {
        let first_jwt = filters.iter().position(is_jwt_authn);
        for (index, filter) in filters.iter().enumerate() {
            let manager = Manager {
                jwt_authn_follows: first_jwt.is_some_and(|first| first > index),
                ..self::manager(node)
            };
            search(filter, Some(manager), found);
        }
    }
    let mut add = |holder: &MarkedYaml<'_>, configuration: &MarkedYaml<'_>| {
        let configuration = match text(configuration) {
            // JSON in a string: its lines are relative to the string's.
            Some(inner) => match load(inner).ok().and_then(|mut nodes| nodes.pop()) {
                Some(inner) if is_sluicegate(&inner) || is_named_sluicegate(holder) => {
                    with_lines(&inner, configuration.span.start.line().saturating_sub(1))
                }
                _ => return,
            },
            None if is_sluicegate(configuration) || is_named_sluicegate(holder) => {
                with_lines(configuration, 0)
            }
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
            // The filters were searched above, each with what follows it.
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

fn cluster_names(node: &MarkedYaml<'_>, names: &mut Vec<String>) {
    if let Some(YamlData::Sequence(clusters)) = get(node, "static_resources")
        .and_then(|resources| get(resources, "clusters"))
        .map(|clusters| &clusters.data)
    {
        let given = clusters.iter().filter_map(|cluster| get(cluster, "name"));
        names.extend(given.filter_map(text).map(str::to_owned));
    }
}

fn with_lines(node: &MarkedYaml<'_>, before: usize) -> ValueWithLines {
    let mut lines = BTreeMap::new();
    lines.insert(String::new(), node.span.start.line() + before);
    let value = convert(node, "", before, &mut lines);
    ValueWithLines { value, lines }
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
                // The key's line: the value may begin on the next.
                lines.insert(path.clone(), key.span.start.line() + before);
                object.insert(name.to_owned(), convert(value, &path, before, lines));
            }
            Value::Object(object)
        }
        _ => Value::Null,
    }
}
