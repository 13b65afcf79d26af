//! Sluicegate's plugin configurations in a document: an Envoy file, an Istio WasmPlugin or EnvoyFilter, an Envoy Gateway
//! EnvoyExtensionPolicy, or a configuration alone.

use super::documents::Source;
use super::yaml::{
    Node, ValueWithLines, children, entries, fields, get, is_true, line_of, lines_before, load,
    text,
};

/// A plugin configuration, and the settings around it that matter to it.
#[derive(Debug)]
pub struct Plugin {
    /// The configuration.
    pub configuration: ValueWithLines,
    /// Whose format the settings around it have.
    pub holder: Holder,
    /// The line of those settings.
    pub line: usize,
    /// The connection manager around it, if any.
    pub manager: Option<Manager>,
    /// What happens to requests when the filter fails: `failure_policy` of Envoy, `failStrategy` of Istio.
    pub failure_policy: Option<String>,
    /// `fail_open` of Envoy or `failOpen` of Envoy Gateway, if it is set.
    pub fail_open: Option<&'static str>,
    /// Where it was found.
    pub source: Source,
    /// The static clusters of the Envoy file around it; `None` if there is no such file.
    pub clusters: Option<Clusters>,
    /// The namespaces of dynamic metadata into which a filter of the file copies what clients send.
    pub copied_namespaces: Vec<String>,
}

/// Whose format it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody's: the configuration alone.
    Nothing,
    /// Envoy's `PluginConfig`.
    Envoy,
    /// Istio's WasmPlugin.
    WasmPlugin,
    /// Envoy Gateway's EnvoyExtensionPolicy.
    EnvoyExtensionPolicy,
}

/// The clusters of an Envoy file.
#[derive(Clone, Debug)]
pub struct Clusters {
    /// Their names.
    pub names: Vec<String>,
    /// A control plane may add others.
    pub dynamic: bool,
}

/// The relevant settings of an HTTP connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The client's address is that of the connection's peer.
    pub use_remote_address: bool,
    /// It drops or rejects headers with `_` in their names.
    pub rejects_underscores: bool,
    /// Under which names of metadata `jwt_authn` filters before this one put payloads; `None` if the file does not say.
    pub payloads: Option<Vec<String>>,
    /// Preflights are answered after this filter.
    pub cors_follows: bool,
    /// No request stays for ever.
    pub has_deadline: bool,
}

/// Finds every plugin configuration of Sluicegate in a document; `before` lines of the file come before its text.
pub fn plugins(document: &Node, before: usize, source: &Source) -> Vec<Plugin> {
    let mut copied = COPYING.map(str::to_owned).to_vec();
    copied_namespaces(document, &mut copied);
    let mut found = Vec::new();
    if is_sluicegate(document) {
        let configuration = ValueWithLines::new(document, before);
        found.push(plugin(document, Holder::Nothing, configuration, before));
    }
    search(document, None, before, &mut found);
    for plugin in &mut found {
        plugin.clusters = clusters(document);
        plugin.copied_namespaces.clone_from(&copied);
        plugin.source.clone_from(source);
    }
    found
}

fn plugin(holder: &Node, kind: Holder, configuration: ValueWithLines, before: usize) -> Plugin {
    let policy = ["failure_policy", "failStrategy"];
    let mut policy = policy.iter().filter_map(|name| get(holder, name));
    Plugin {
        configuration,
        holder: kind,
        line: line_of(holder, before),
        manager: None,
        failure_policy: policy.find_map(text).map(str::to_owned),
        fail_open: ["fail_open", "failOpen"]
            .into_iter()
            .find(|name| is_true(holder, name)),
        source: Source::default(),
        clusters: None,
        copied_namespaces: Vec::new(),
    }
}

/// Our configurations have `sidecar` and `rules`; another plugin's are unlikely to.
fn is_sluicegate(node: &Node) -> bool {
    get(node, "sidecar").is_some() && get(node, "rules").is_some()
}

/// Recognizes the holder of a configuration by its name, so that a broken configuration is found too.
fn is_named_sluicegate(node: &Node) -> bool {
    let name = |field| get(node, field).and_then(text);
    let mut names = ["name", "pluginName", "url"].into_iter().filter_map(name);
    names.any(|name| name.contains("sluicegate"))
}

/// The manager around a filter, which comes between these others.
fn manager(node: &Node, earlier: &[Node], later: &[Node]) -> Manager {
    let options = get(node, "common_http_protocol_options");
    let action = options.and_then(|options| get(options, "headers_with_underscores_action"));
    Manager {
        use_remote_address: is_true(node, "use_remote_address"),
        rejects_underscores: action
            .and_then(text)
            .is_some_and(|action| matches!(action, "REJECT_REQUEST" | "DROP_HEADER")),
        payloads: payloads(earlier),
        cors_follows: later.iter().any(|filter| is_called(filter, "http.cors")),
        has_deadline: ["request_timeout", "stream_idle_timeout"]
            .iter()
            .any(|name| get(node, name).is_some()),
    }
}

/// The names under which filters put payloads of tokens; `None` if one of them is configured elsewhere.
fn payloads(filters: &[Node]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for filter in filters
        .iter()
        .filter(|filter| is_called(filter, "jwt_authn"))
    {
        texts_of(
            get(filter, "typed_config")?,
            "payload_in_metadata",
            &mut found,
        );
    }
    Some(found)
}

/// The values of all fields with this name.
fn texts_of(node: &Node, field: &str, found: &mut Vec<String>) {
    found.extend(get(node, field).and_then(text).map(str::to_owned));
    children(node).for_each(|child| texts_of(child, field, found));
}

/// Whether a filter has this in its name or in its type's.
fn is_called(filter: &Node, what: &str) -> bool {
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
fn copied_namespaces(node: &Node, found: &mut Vec<String>) {
    let copies = ["header_to_metadata", "json_to_metadata"];
    if copies.iter().any(|copies| is_called(node, copies)) {
        texts_of(node, "metadata_namespace", found);
    } else {
        children(node).for_each(|child| copied_namespaces(child, found));
    }
}

fn search(node: &Node, manager: Option<&Manager>, before: usize, found: &mut Vec<Plugin>) {
    if let Some(filters) = get(node, "http_filters").map(entries) {
        for (index, filter) in filters.iter().enumerate() {
            let (earlier, later) = filters.split_at(index);
            let manager = self::manager(node, earlier, later);
            search(filter, Some(&manager), before, found);
        }
    }
    let mut add = |kind: Holder, configuration: &Node| {
        let configuration = match text(configuration) {
            // JSON in a string: its lines are relative to the string's.
            Some(inner) => match load(inner).ok().and_then(|mut nodes| nodes.pop()) {
                Some(inner) if is_sluicegate(&inner) || is_named_sluicegate(node) => {
                    ValueWithLines::new(&inner, lines_before(configuration, before))
                }
                _ => return,
            },
            None if is_sluicegate(configuration) || is_named_sluicegate(node) => {
                ValueWithLines::new(configuration, before)
            }
            None => return,
        };
        found.push(Plugin {
            manager: manager.cloned(),
            ..plugin(node, kind, configuration, before)
        });
    };
    // Envoy: PluginConfig.configuration, a Struct or a StringValue.
    if get(node, "vm_config").is_some()
        && let Some(value) = get(node, "configuration").and_then(|any| get(any, "value"))
    {
        add(Holder::Envoy, value);
    }
    // Istio: WasmPlugin.spec.pluginConfig.
    if let Some(configuration) = get(node, "pluginConfig") {
        add(Holder::WasmPlugin, configuration);
    }
    // Envoy Gateway: EnvoyExtensionPolicy.spec.wasm[].config.
    if get(node, "code").is_some()
        && let Some(configuration) = get(node, "config")
    {
        add(Holder::EnvoyExtensionPolicy, configuration);
    }
    // The filters were searched above, each with what follows it.
    let others = fields(node)
        .iter()
        .filter(|(name, _)| name.value != "http_filters");
    let others = others.map(|(_, value)| value).chain(entries(node));
    others.for_each(|value| search(value, manager, before, found));
}

/// The clusters of an Envoy file, if the document is one.
fn clusters(document: &Node) -> Option<Clusters> {
    let of = get(document, "static_resources")?;
    let list = get(of, "clusters").map(entries).unwrap_or_default();
    let names = list.iter().filter_map(|cluster| get(cluster, "name"));
    let dynamic = get(document, "dynamic_resources");
    Some(Clusters {
        names: names.filter_map(text).map(str::to_owned).collect(),
        dynamic: dynamic.is_some_and(|dynamic| get(dynamic, "cds_config").is_some()),
    })
}
