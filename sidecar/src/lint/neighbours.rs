//! Other filters of the connection manager: which of them may clear the route, ask for it or change the path, in Envoy 1.40.

use super::envoy_yaml::has_ours;
use super::messages::{any, enumerated, spelled};
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

/// Another filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// Its type, such as `lua`.
    pub kind: String,
    /// It may clear the route.
    pub clears_route: bool,
    /// It asks for the route of every request, which makes Envoy select it again.
    pub asks_route: bool,
    /// It gives requests another path.
    pub changes_path: bool,
    /// The header fields that it takes from requests.
    pub removes: Vec<String>,
}

impl Neighbour {
    /// Reads a filter of this connection manager.
    pub fn read(filter: &Node, manager: &Node) -> Self {
        let name = get(filter, "name").and_then(text).unwrap_or_default();
        let mut nodes = vec![filter];
        of_routes(manager, name, &mut nodes);
        let mut found = Vec::new();
        for node in &nodes {
            configurations(node, &mut found);
        }
        if found.is_empty() {
            found.extend(kind(name).map(|kind| (kind, None)));
        }
        let mut removes = Vec::new();
        for (kind, configuration) in &found {
            removes.extend(configuration.iter().flat_map(|node| removed(kind, node)));
        }
        let of_type = at(filter, &["typed_config", "@type"])
            .and_then(text)
            .and_then(kind);
        let asks = of_type.is_some_and(|kind| is(ASK, kind));
        let is_off = |node: &&Node| is_true(node, "disabled");
        Self {
            name: name.to_owned(),
            kind: found
                .first()
                .map(|(kind, _)| (*kind).to_owned())
                .unwrap_or_default(),
            clears_route: found.iter().any(clears) && !has_ours(filter),
            asks_route: asks && !nodes.iter().any(is_off),
            changes_path: found.iter().any(changes_path),
            removes,
        }
    }
}

type Found<'a> = (&'a str, Option<&'a Node>);

fn is(list: &str, kind: &str) -> bool {
    list.contains(&format!(" {kind} "))
}

fn clears((kind, configuration): &Found<'_>) -> bool {
    let says = |what: &dyn Fn(&Node) -> bool| configuration.is_some_and(|node| any(node, what));
    let tells = |node: &Node| {
        is_true(node, "clear_route_cache") || get(node, "clear_route_cache_headers").is_some()
    };
    let forbids = |node: &Node| {
        let action = enumerated(node, "route_cache_action", &["DEFAULT", "CLEAR", "RETAIN"]);
        is_true(node, "disable_clear_route_cache")
            || is_true(node, "match_incoming_request_route")
            || action.is_some_and(|action| action == "RETAIN")
    };
    is(CLEAR, kind)
        || is(CLEAR_IF_TOLD, kind) && (configuration.is_none() || says(&tells))
        || is(CLEAR_UNLESS_TOLD, kind) && !says(&forbids)
}

fn changes_path((kind, configuration): &Found<'_>) -> bool {
    // The header of a mutation, or a script that replaces it.
    let names = |node: &Node| {
        let texts = ["replace(\":path\"", "replace(':path'"];
        text(node).is_some_and(|text| text == ":path" || texts.iter().any(|one| text.contains(one)))
    };
    let is_able = matches!(*kind, "header_mutation" | "lua");
    is(CHANGE_PATH, kind) || is_able && configuration.is_some_and(|node| any(node, &names))
}

/// The header fields that a filter takes from requests.
fn removed(kind: &str, configuration: &Node) -> Vec<String> {
    let list = |path: &[&str]| at(configuration, path).map(entries).unwrap_or_default();
    let texts = |node, field| get(node, field).and_then(text).map(str::to_lowercase);
    match kind {
        "header_mutation" => {
            let mutations = list(&["mutations", "request_mutations"]).iter();
            mutations.filter_map(|one| texts(one, "remove")).collect()
        }
        "header_to_metadata" => {
            let rules = list(&["request_rules"]).iter();
            let rules = rules.filter(|rule| is_true(rule, "remove"));
            rules.filter_map(|rule| texts(rule, "header")).collect()
        }
        "jwt_authn" => {
            let providers = get(configuration, "providers")
                .map(fields)
                .unwrap_or_default();
            let providers = providers.iter().map(|(_, provider)| provider);
            let providers = providers.filter(|provider| !is_true(provider, "forward"));
            let from = |provider| match get(provider, "from_headers").map(entries) {
                Some(headers) => headers
                    .iter()
                    .filter_map(|one| texts(one, "name"))
                    .collect(),
                None if ["from_params", "from_cookies"]
                    .iter()
                    .any(|field| get(provider, field).is_some()) =>
                {
                    Vec::new()
                }
                None => vec!["authorization".to_owned()],
            };
            providers.flat_map(from).collect()
        }
        _ => Vec::new(),
    }
}

/// The type of a filter, by the name of its message or its own.
fn kind(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once("filters.http.")?;
    rest.split(['.', '/']).next()
}

/// The filters in a configuration, each with what is known of it.
fn configurations<'a>(node: &'a Node, found: &mut Vec<Found<'a>>) {
    let of = get(node, "type_url").or_else(|| get(node, "@type"));
    let of = of.and_then(text).and_then(kind);
    found.extend(of.map(|kind| (kind, Some(node))));
    // Of a filter that a control plane configures.
    let urls = get(node, "type_urls").map(entries).unwrap_or_default();
    let urls = urls.iter().filter_map(text).filter_map(kind);
    found.extend(urls.map(|kind| (kind, None)));
    children(node).for_each(|child| configurations(child, found));
}

/// What routes say of the filter of this name.
fn of_routes<'a>(node: &'a Node, name: &str, found: &mut Vec<&'a Node>) {
    let here = get(node, "typed_per_filter_config").map(fields);
    let here = here.unwrap_or_default().iter();
    found.extend(
        here.filter(|(key, _)| key.value == spelled(name))
            .map(|(_, value)| value),
    );
    children(node).for_each(|child| of_routes(child, name, found));
}
