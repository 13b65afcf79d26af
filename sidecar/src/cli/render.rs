//! `sluicegate render`: prints the parts that belong into an Envoy configuration that exists, or the manifests for a mesh.

mod mesh;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use sluicegate::policy::{Policy, StoreAddress};

use super::Failure;
use super::endpoint::DECISIONS;
use super::envoy_example::{Filter, by_name, host_and_port, with_address};
use super::manifests::text_of;
use super::stdout::{eprint, print};

/// Arguments of `render`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate render --for envoy --sidecar 127.0.0.1:9180 > parts.yaml\n\n\
                  For a mesh, without Helm:\n  sluicegate render --for istio --namespace istio-ingress --policy policy.yaml > sluicegate.yaml\n\nMore:\n  docs/dev.md#add-it-to-an-envoy-that-exists"
)]
pub struct Render {
    /// The proxy. For `envoy-gateway` and `istio`, all manifests are printed, as the chart makes them.
    #[arg(long = "for", value_name = "PROXY", value_parser = ["envoy", "envoy-gateway", "istio"])]
    proxy: String,
    /// For a mesh: the policy (YAML).
    #[arg(long, value_name = "FILE", required_if_eq_any = [("proxy", "envoy-gateway"), ("proxy", "istio")],
        conflicts_with_all = ["sidecar", "rule_sets", "module", "pepper_file"])]
    policy: Option<PathBuf>,
    /// For a mesh: the namespace of the Gateways, or of Istio's pods.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "default",
        requires = "policy",
        value_parser = namespace
    )]
    namespace: String,
    /// The sidecar's decision port, where Envoy reaches it: a host or an address, and the port.
    #[arg(long, value_name = "URL", default_value = DECISIONS, value_parser = host_and_port)]
    sidecar: String,
    /// The policy's rule sets that the filter runs, if not `default`. The first is for all requests whose route has the name
    /// of no other.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    rule_sets: Vec<String>,
    #[command(flatten)]
    filter: Filter,
}

const HEAD: &str = "\
# Sluicegate's parts of an Envoy configuration. Paste each where its first line says, indented as its new neighbours are.
# Where a field is there already, change it instead of repeating it; where a list is, add to it.
# Afterwards: sluicegate check-config --policy policy.yaml --envoy envoy.yaml
";

/// Where each part belongs.
const PLACES: [&str; 5] = [
    "At the top level",
    "In the `typed_config` of each HTTP connection manager, beside `http_filters`",
    "In its `route_config`, or the RouteConfiguration that RDS provides, beside `virtual_hosts`",
    "In its `http_filters`",
    "In `clusters` of `static_resources`",
];
/// The texts of the example with which each part begins, and before which it ends.
const BOUNDS: [[&str; 2]; 5] = [
    ["# Makes rule", "static_resources:"],
    ["# Needed if", "route_config:"],
    ["# Removes clients'", "virtual_hosts:"],
    ["# After `cors`", "- name: envoy.filters"],
    ["- name: sluicegate\n      type:", "\0 (to the end)"],
];

const VERSION: &str = "version: 2\n";
const FILTER: &str = "- name: sluicegate\n  typed_config:\n";
/// An `rbac` without rules.
const ROUTE: &str = r#"# Makes Envoy select the route again, whose name chooses the rule set, if a filter before has cleared it.
- name: sluicegate-route
  typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC }
"#;

impl Render {
    pub fn run(self) -> Result<(), Failure> {
        if self.proxy != "envoy" {
            let path = self.policy.unwrap_or_default();
            let read = Policy::load(&path).map_err(Failure::usage)?;
            if matches!(read.store, StoreAddress::Memory) {
                eprint("the policy has no `store`: each pod would count for itself\n");
            }
            let (_, policy) = text_of(&path)?;
            Policy::parse(&policy).map_err(|why| {
                Failure::usage(format!("{why}. The manifests have no other file than the policy: use the chart, or write what the file has into it"))
            })?;
            return print(&mesh::manifests(&self.proxy, &self.namespace, &policy));
        }
        if self.policy.is_some() {
            return Err(Failure::usage(
                "`--policy` is for a mesh: an Envoy's filter gets its rules from the sidecar",
            ));
        }
        let mut example = with_address(&self.filter.example()?, 9180, &self.sidecar);
        if self.sidecar.parse::<SocketAddr>().is_err() {
            example = by_name(&example);
        }
        let mut text = HEAD.to_owned();
        for (number, (place, bounds)) in (1..).zip(PLACES.into_iter().zip(BOUNDS)) {
            let part = part(&example, bounds);
            text += &format!("---\n# {number}. {place}:\n{part}");
        }
        if let [default, others @ ..] = self.rule_sets.as_slice() {
            let sets = if others.is_empty() {
                json!({ "default": default })
            } else {
                text = text.replacen(FILTER, &format!("{ROUTE}{FILTER}"), 1);
                json!({ "default": default, "others": others, "by": "route_name" })
            };
            let sets = format!("{VERSION}          rule_sets: {sets}\n");
            text = text.replacen(VERSION, &sets, 1);
        }
        print(&text)
    }
}

/// A label of DNS.
fn namespace(text: &str) -> Result<String, &'static str> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_one = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.len() < 64;
    let is_one = is_one && text.chars().all(is_part);
    is_one
        .then(|| text.to_owned())
        .ok_or("expected the name of a namespace, such as istio-ingress")
}

/// The part of a text between two others, without its indentation.
fn part(text: &str, [start, end]: [&str; 2]) -> String {
    let before = text.split_once(start).map_or(text, |(before, _)| before);
    let rest = text.get(before.len()..).unwrap_or_default();
    let part = rest.split_once(end).map_or(rest, |(part, _)| part);
    let indentation = before.rsplit('\n').next().unwrap_or_default();
    let lines = part.trim_end().lines();
    let lines = lines.map(|line| line.strip_prefix(indentation).unwrap_or(line));
    lines.map(|line| format!("{line}\n")).collect()
}
