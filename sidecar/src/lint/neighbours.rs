//! Other filters of the connection manager: which of them may clear the route, ask for it, change the path or headers, or write
//! metadata, in Envoy 1.40.

use sluicegate_rules::config::schema::NamePath;

use super::messages::{any, enumerated, is_called, spelled};
use crate::yaml::{Node, at, children, entries, fields, get, is_true, text};

/// May clear the route, whatever their configurations say.
const CLEAR: &str = " connect_grpc_bridge dynamic_modules golang grpc_http1_bridge grpc_http1_reverse_bridge \
                     grpc_json_reverse_transcoder header_mutation ip_tagging json_to_metadata lua mcp_router on_demand \
                     thrift_to_metadata wasm ";
/// Clear it if their configurations say so.
const CLEAR_IF_TOLD: &str = " ext_authz jwt_authn language mcp set_filter_state transform ";
/// Clear it unless their configurations forbid it.
const CLEAR_UNLESS_TOLD: &str = " ext_proc grpc_json_transcoder mcp_json_rest_bridge ";
/// Ask Envoy for the route of every request (tests/chain/route_cleared.rs).
const ASK: &str = " cors csrf fault rbac ";
/// Give requests another path.
const CHANGE_PATH: &str = " connect_grpc_bridge grpc_json_reverse_transcoder grpc_json_transcoder mcp_json_rest_bridge \
                           mcp_router ";

/// Run code that writes whatever metadata it likes.
const PROGRAMS: &str = " dynamic_modules golang wasm ";
/// Before the names of filters that are Envoy's own, which are also the namespaces of their metadata.
const ENVOYS: &str = "envoy.filters.http.";

/// Another filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// It answers preflights.
    pub is_cors: bool,
    /// It is the last that gets a request.
    pub is_router: bool,
    /// It may clear the route.
    pub clears_route: bool,
    /// It asks for the route of every request, which makes Envoy select it again.
    pub asks_route: bool,
    /// It gives requests another path.
    pub changes_path: bool,
    /// The header fields that it takes from requests.
    pub removes: Vec<String>,
    /// Its configuration, or its program, is elsewhere: it may write any metadata.
    pub is_hidden: bool,
    /// The texts of its configuration, among them the namespaces that it writes to.
    texts: Vec<String>,
    /// The names of the metadata into which it copies what requests tell, with their namespaces.
    copies: Vec<(String, String)>,
}

impl Neighbour {
    /// Reads a filter of this connection manager; `is_ours`: it has a configuration of ours, and so clears no route.
    pub fn read(filter: &Node, manager: &Node, is_ours: bool) -> Self {
        let name = get(filter, "name").and_then(text).unwrap_or_default();
        let mut nodes = vec![filter];
        of_routes(manager, &spelled(name), &mut nodes);
        // One that is off runs where a route has a configuration for it.
        let is_on = |node: &&Node| !is_true(node, "disabled");
        let is_always_on = nodes.iter().all(is_on);
        if !nodes.iter().any(is_on) {
            nodes.clear();
        }
        let mut kinds = Vec::new();
        nodes.iter().for_each(|node| types(node, &mut kinds));
        let is = |list: &str| kinds.iter().any(|kind| list.contains(&format!(" {kind} ")));
        let says = |what: &dyn Fn(&Node) -> bool| nodes.iter().any(|node| any(node, what));
        let forbids = |node: &Node| {
            is_true(node, "disable_clear_route_cache")
                || is_true(node, "match_incoming_request_route")
                || enumerated(node, "route_cache_action").is_some_and(|action| action == "RETAIN")
        };
        let tells = |node: &Node| {
            is_true(node, "clear_route_cache")
                || get(node, "clear_route_cache_headers").is_some()
                || get(node, "config_discovery").is_some()
        };
        // Not inside another filter, which decides by request whether it runs.
        let of_type = at(filter, &["typed_config", "@type"]).and_then(text);
        let asks = of_type.and_then(kind);
        let asks = asks.is_some_and(|kind| ASK.contains(&format!(" {kind} ")));
        // The header of a mutation, or a script that replaces it.
        let names_path = |node: &Node| {
            text(node).is_some_and(|text| {
                let text = text.replace('\'', "\"");
                text == ":path" || text.contains("replace(\":path\"")
            })
        };
        let mut removes = Vec::new();
        nodes.iter().for_each(|node| removed(node, &mut removes));
        let (mut texts, mut copies) = (Vec::new(), Vec::new());
        for node in nodes.iter().filter(|_| !is_ours) {
            texts_of(node, &mut texts);
            for kind in ["header_to_metadata", "json_to_metadata"]
                .iter()
                .filter(|kind| kinds.contains(kind))
            {
                copied(node, &format!("{ENVOYS}{kind}"), false, &mut copies);
            }
        }
        texts.extend(kinds.iter().map(|kind| format!("{ENVOYS}{kind}")));
        let is_elsewhere = |node: &Node| {
            get(node, "config_discovery").is_some() || get(node, "filename").is_some()
        };
        Self {
            name: name.to_owned(),
            is_cors: is_called(filter, "http.cors"),
            is_router: is_called(filter, "http.router"),
            clears_route: !is_ours
                && (is(CLEAR)
                    || is(CLEAR_IF_TOLD) && says(&tells)
                    || is(CLEAR_UNLESS_TOLD) && !says(&forbids)),
            asks_route: asks && is_always_on,
            changes_path: is(CHANGE_PATH) || is(" header_mutation lua ") && says(&names_path),
            removes,
            is_hidden: !is_ours && (is(PROGRAMS) || says(&is_elsewhere)),
            texts,
            copies,
        }
    }

    /// Whether it may write metadata into a namespace: its configuration has the name, or a script in it does.
    pub fn writes(&self, namespace: &str) -> bool {
        let quoted = format!("\"{namespace}\"");
        let mut texts = self.texts.iter();
        texts.any(|text| text == namespace || text.replace('\'', "\"").contains(&quoted))
    }

    /// Whether it copies something of requests there.
    pub fn copies(&self, namespace: &str, name: &NamePath) -> bool {
        let name = match name {
            NamePath::Name(name) => Some(name),
            NamePath::List(names) => names.first(),
        };
        let mut copies = self.copies.iter();
        copies.any(|(to, key)| to == namespace && Some(key) == name)
    }
}

/// All texts of a configuration.
fn texts_of(node: &Node, found: &mut Vec<String>) {
    found.extend(text(node).map(str::to_owned));
    children(node).for_each(|child| texts_of(child, found));
}

/// What `request_rules` write when a request has what they look for, by default into the filter's own namespace.
fn copied(node: &Node, own: &str, of_requests: bool, found: &mut Vec<(String, String)>) {
    for (name, value) in fields(node) {
        let name = name.value.as_str();
        if of_requests && ["on_present", "on_header_present"].contains(&name) {
            let namespace = get(value, "metadata_namespace").and_then(text);
            let namespace = namespace.filter(|name| !name.is_empty()).unwrap_or(own);
            let key = get(value, "key").and_then(text);
            found.extend(key.map(|key| (namespace.to_owned(), key.to_owned())));
        }
        copied(value, own, of_requests || name == "request_rules", found);
    }
    entries(node)
        .iter()
        .for_each(|child| copied(child, own, of_requests, found));
}

/// The type of a filter, such as `lua`, in the name of its message.
fn kind(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once("extensions.filters.http.")?;
    rest.split('.').next()
}

/// The types of the filters in a configuration.
fn types<'a>(node: &'a Node, found: &mut Vec<&'a str>) {
    found.extend(text(node).and_then(kind));
    children(node).for_each(|child| types(child, found));
}

/// The header fields that a configuration takes from requests.
fn removed(node: &Node, found: &mut Vec<String>) {
    let mut add =
        |node: &Node, field| found.extend(get(node, field).and_then(text).map(str::to_lowercase));
    add(node, "remove");
    if is_true(node, "remove") {
        add(node, "header");
    }
    // Of `jwt_authn`.
    if !is_true(node, "forward") {
        let headers = get(node, "from_headers").map(entries).unwrap_or_default();
        headers.iter().for_each(|header| add(header, "name"));
    }
    children(node).for_each(|child| removed(child, found));
}

/// What routes say of the filter of this name.
fn of_routes<'a>(node: &'a Node, name: &str, found: &mut Vec<&'a Node>) {
    found.extend(at(node, &["typed_per_filter_config", name]));
    children(node).for_each(|child| of_routes(child, name, found));
}
