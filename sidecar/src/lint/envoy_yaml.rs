//! Sluicegate's plugin configurations in a document: an Envoy file, an Istio WasmPlugin or EnvoyFilter, an Envoy Gateway
//! EnvoyExtensionPolicy, or a configuration alone.

use std::collections::BTreeSet;

use super::messages::{any, enumerated, is_called, is_sluicegate, lasts, names};
use super::neighbours::Neighbour;
use crate::yaml::{
    Node, ValueWithLines, at, children, entries, fields, get, integer, is_true, line_of,
    lines_before, load, text,
};

/// Where something was found.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The file.
    pub file: String,
    /// The document, such as `WasmPlugin shop/sluicegate`; empty if it is not a Kubernetes object.
    pub document: String,
    /// The document's namespace.
    pub namespace: String,
}

impl Source {
    /// The beginning of a message about it: the Kubernetes object, if it is one.
    pub fn object(&self) -> String {
        match self.document.as_str() {
            "" => String::new(),
            document => format!("{document}: "),
        }
    }
}

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
    /// `fail_open` of Envoy or `failOpen` of Envoy Gateway is set.
    pub fail_open: bool,
    /// The file that Envoy loads the filter from.
    pub module: Option<String>,
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

impl Clusters {
    /// Reads them, if the document is such a file.
    pub fn read(document: &Node) -> Option<Self> {
        let of = get(document, "static_resources")?;
        let list = get(of, "clusters").map(entries).unwrap_or_default();
        let names = list.iter().filter_map(|cluster| get(cluster, "name"));
        Some(Self {
            names: names.filter_map(text).map(str::to_owned).collect(),
            dynamic: at(document, &["dynamic_resources", "cds_config"]).is_some(),
        })
    }
}

/// The relevant settings of an HTTP connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// The client's address is that of the connection's peer.
    pub use_remote_address: bool,
    /// An extension finds the client's address.
    pub detects_addresses: bool,
    /// It counts hops, which Envoy refuses beside such an extension.
    pub counts_hops: bool,
    /// It drops or rejects headers with `_` in their names.
    pub rejects_underscores: bool,
    /// Under which names of metadata `jwt_authn` filters before this one put payloads; `None` if the file does not say.
    pub payloads: Option<Vec<String>>,
    /// The filters before this one.
    pub earlier: Vec<Neighbour>,
    /// The filters after this one.
    pub later: Vec<Neighbour>,
    /// Its routes, if these files have them.
    pub routes: Option<Routes>,
    /// The name of its routes, if they are elsewhere.
    pub route_name: Option<String>,
    /// No request stays for ever.
    pub has_deadline: bool,
}

/// The relevant settings of a RouteConfiguration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// What paths begin with that routes match, and what upstreams get in its place.
    pub rewritten: BTreeSet<(String, String)>,
    /// Clients' copies of the fields that Sluicegate writes are removed.
    pub strips_fields: bool,
    /// Scripts of other origins cannot read when to come back.
    pub hides_fields: bool,
}

impl Routes {
    pub fn read(node: &Node) -> Self {
        let exposes = |one: &Node| {
            ["retry-after", "*"]
                .iter()
                .any(|name| names(one, "expose_headers", name))
        };
        let strips = |one: &Node| names(one, "request_headers_to_remove", "ratelimit");
        let mut rewritten = BTreeSet::new();
        find_rewritten(node, &mut rewritten);
        Self {
            rewritten,
            strips_fields: any(node, &strips),
            hides_fields: any(node, &|one| get(one, "allow_origin_string_match").is_some())
                && !any(node, &exposes),
        }
    }
}

/// Finds every plugin configuration of Sluicegate in a document; `before` lines of the file come before its text.
pub fn plugins(document: &Node, before: usize, source: &Source) -> Vec<Plugin> {
    let mut copied = COPYING
        .map(|name| format!("envoy.filters.http.{name}"))
        .to_vec();
    copied_namespaces(document, &mut copied);
    let mut found = Vec::new();
    found.extend(plugin(document, Holder::Nothing, document, None, before));
    search(document, None, before, &mut found);
    for plugin in &mut found {
        plugin.clusters = Clusters::read(document);
        plugin.copied_namespaces.clone_from(&copied);
        plugin.source.clone_from(source);
    }
    found
}

/// The plugin of a configuration, if that is one of Sluicegate's.
fn plugin(
    around: &Node,
    holder: Holder,
    configuration: &Node,
    manager: Option<&Manager>,
    before: usize,
) -> Option<Plugin> {
    let inner;
    let (node, first) = match text(configuration) {
        // JSON in a string: its lines are relative to the string's.
        Some(json) => {
            inner = load(json).ok()?.pop()?;
            (&inner, lines_before(configuration, before))
        }
        None => (configuration, before),
    };
    // By the holder's name too, so that a broken configuration is found.
    if !is_sluicegate(node) && (holder == Holder::Nothing || !is_named_sluicegate(around)) {
        return None;
    }
    let policy = enumerated(around, "failure_policy");
    let policy = policy.filter(|policy| policy != "UNSPECIFIED");
    let module = ["vm_config", "code", "local", "filename"];
    Some(Plugin {
        configuration: ValueWithLines::new(node, first),
        holder,
        line: line_of(around, before),
        manager: manager.cloned(),
        failure_policy: policy.or_else(|| enumerated(around, "fail_strategy")),
        fail_open: is_true(around, "fail_open"),
        module: at(around, &module).and_then(text).map(str::to_owned),
        source: Source::default(),
        clusters: None,
        copied_namespaces: Vec::new(),
    })
}

/// Whether the holder of a configuration has our name.
fn is_named_sluicegate(node: &Node) -> bool {
    let name = |field| get(node, field).and_then(text);
    let mut names = ["name", "plugin_name", "url"].into_iter().filter_map(name);
    names.any(|name| name.contains("sluicegate"))
}

/// The manager around a filter, which comes between these others.
fn manager(node: &Node, earlier: &[Node], later: &[Node]) -> Manager {
    let options = get(node, "common_http_protocol_options").unwrap_or(node);
    let action = enumerated(options, "headers_with_underscores_action");
    let neighbour = |one: &Node| Neighbour::read(one, node, has_ours(one));
    let neighbours = |list: &[Node]| list.iter().map(neighbour).collect();
    let routes = get(node, "route_config");
    let is_endless = |one: &Node| get(one, "idle_timeout").is_some() && !lasts(one, "idle_timeout");
    let is_endless = routes.is_some_and(|routes| any(routes, &is_endless));
    let name = at(node, &["rds", "route_config_name"]).and_then(text);
    let extensions = get(node, "original_ip_detection_extensions").map(entries);
    let hops = get(node, "xff_num_trusted_hops");
    Manager {
        use_remote_address: is_true(node, "use_remote_address"),
        detects_addresses: extensions.is_some_and(|list| !list.is_empty()),
        counts_hops: hops.is_some_and(|hops| integer(hops) != Some(0)),
        rejects_underscores: action.is_some_and(|action| action != "ALLOW"),
        payloads: payloads(earlier),
        earlier: neighbours(earlier),
        later: neighbours(later),
        routes: routes.map(Routes::read),
        route_name: name.map(str::to_owned),
        has_deadline: lasts(node, "request_timeout")
            || lasts(options, "max_stream_duration")
            || lasts(node, "stream_idle_timeout") && !is_endless,
    }
}

/// The names under which filters put payloads of tokens; `None` if one of them is configured elsewhere.
fn payloads(filters: &[Node]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let filters = filters.iter();
    for filter in filters.filter(|filter| is_called(filter, "jwt_authn")) {
        let configuration = get(filter, "typed_config")?;
        texts_of(configuration, "payload_in_metadata", &mut found);
    }
    Some(found)
}

/// The values of all fields with this name.
fn texts_of(node: &Node, field: &str, found: &mut Vec<String>) {
    found.extend(get(node, field).and_then(text).map(str::to_owned));
    children(node).for_each(|child| texts_of(child, field, found));
}

/// The prefixes that routes match and that their actions give upstreams; empty: a route matches in another way.
fn find_rewritten(node: &Node, found: &mut BTreeSet<(String, String)>) {
    if let Some(new) = at(node, &["route", "prefix_rewrite"]).and_then(text) {
        let mut fields = ["prefix", "path_separated_prefix", "path"].into_iter();
        let sent = fields.find_map(|field| at(node, &["match", field]).and_then(text));
        found.insert((sent.unwrap_or_default().to_owned(), new.to_owned()));
    }
    children(node).for_each(|inner| find_rewritten(inner, found));
}

/// Whether a filter is ours.
fn has_ours(filter: &Node) -> bool {
    any(filter, &|node| !plugins_of(node, None, 0).is_empty())
}

/// Filters that copy what clients send into dynamic metadata, by default into a namespace of their full name.
const COPYING: [&str; 2] = ["header_to_metadata", "json_to_metadata"];

/// The other namespaces that such filters write to.
fn copied_namespaces(node: &Node, found: &mut Vec<String>) {
    if COPYING.iter().any(|name| is_called(node, name)) {
        texts_of(node, "metadata_namespace", found);
    } else {
        children(node).for_each(|child| copied_namespaces(child, found));
    }
}

fn search(node: &Node, manager: Option<&Manager>, before: usize, found: &mut Vec<Plugin>) {
    if let Some(filters) = get(node, "http_filters").map(entries) {
        for (index, filter) in filters.iter().enumerate().filter(|(_, one)| has_ours(one)) {
            let (earlier, later) = filters.split_at(index);
            let manager = self::manager(node, earlier, later);
            search(filter, Some(&manager), before, found);
        }
    }
    found.extend(plugins_of(node, manager, before));
    // The filters were searched above, each with what follows it.
    let others = fields(node)
        .iter()
        .filter(|(name, _)| name.value != "http_filters");
    let others = others.map(|(_, value)| value).chain(entries(node));
    others.for_each(|value| search(value, manager, before, found));
}

/// The plugins whose settings these are.
fn plugins_of(node: &Node, manager: Option<&Manager>, before: usize) -> Vec<Plugin> {
    // Envoy: PluginConfig.configuration, a Struct or a StringValue.
    let of_envoy = get(node, "vm_config").and_then(|_| at(node, &["configuration", "value"]));
    // Envoy Gateway: EnvoyExtensionPolicy.spec.wasm[].config.
    let of_gateway = get(node, "code").and_then(|_| get(node, "config"));
    let found = [
        (Holder::Envoy, of_envoy),
        // Istio: WasmPlugin.spec.pluginConfig.
        (Holder::WasmPlugin, get(node, "plugin_config")),
        (Holder::EnvoyExtensionPolicy, of_gateway),
    ];
    let found = found.into_iter().filter_map(|(holder, configuration)| {
        plugin(node, holder, configuration?, manager, before)
    });
    found.collect()
}
