//! What has to exist around a plugin: the sidecar's cluster, and a policy for the case that the filter fails. In Kubernetes
//! these are objects of their own, often in other files.

use std::collections::BTreeMap;

use sluicegate_rules::config::nearest;

use super::envoy_yaml::{Clusters, Holder, Plugin, Routes};
use super::findings::Findings;
use super::findings::Severity::{self, Error, Warning};
use super::messages::{any, enumerated, names};
use crate::yaml::{Node, at, children, entries, get, integer, load, text};

const CLUSTER: &str = "sidecar.cluster";
/// Envoy's name of the policy that starts a filter again.
const RELOAD: &str = "FAIL_RELOAD";
/// Envoy's and Istio's name of the policy that lets requests pass.
const OPEN: &str = "FAIL_OPEN";

/// What the objects of all files together provide.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Clusters: those that patches add, and Istio's of ServiceEntries and Services. Each with the only namespace that sees
    /// it; `None` if all do.
    clusters: BTreeMap<String, Option<String>>,
    /// There is an object that could add a cluster: an EnvoyProxy, EnvoyPatchPolicy or EnvoyFilter.
    has_patches: bool,
    /// There is a ServiceEntry.
    has_service_entries: bool,
    /// There is a bootstrap, or a file of clusters.
    has_clusters: bool,
    /// The static clusters of bootstraps.
    of_bootstraps: Vec<String>,
    /// There is a bootstrap, which might have the labels of the filter's counters.
    has_bootstrap: bool,
    /// A bootstrap has these labels.
    has_labels: bool,
    /// Routes in files of their own, by their names.
    pub routes: BTreeMap<String, Routes>,
    /// A patch sets `failure_policy: FAIL_RELOAD`.
    reloads: bool,
}

impl Surroundings {
    /// Adds what a document provides.
    pub fn add(&mut self, kind: &str, namespace: &str, document: &Node) {
        let spec = |field| {
            at(document, &["spec", field])
                .map(entries)
                .unwrap_or_default()
        };
        match kind {
            "EnvoyProxy" | "EnvoyPatchPolicy" | "EnvoyFilter" => {
                self.has_patches = true;
                self.add_patches(document);
            }
            "ServiceEntry" => {
                self.has_service_entries = true;
                let exported: Vec<_> = spec("export_to").iter().filter_map(text).collect();
                let only_in = (exported == ["."]).then_some(namespace);
                for host in spec("hosts").iter().filter_map(text) {
                    self.add_host(host, spec("ports"), "number", only_in);
                }
            }
            "Service" => {
                let name = at(document, &["metadata", "name"]).and_then(text);
                let namespace = Some(namespace).filter(|name| !name.is_empty());
                let namespace = namespace.unwrap_or("default");
                if let Some(name) = name {
                    let host = format!("{name}.{namespace}.svc.cluster.local");
                    self.add_host(&host, spec("ports"), "port", None);
                }
            }
            "" => {
                let parts = ["static_resources", "dynamic_resources"];
                self.has_bootstrap |= parts.iter().any(|part| get(document, part).is_some());
                self.has_clusters |= self.has_bootstrap;
                let clusters = Clusters::read(document).map(|clusters| clusters.names);
                self.of_bootstraps.extend(clusters.unwrap_or_default());
                let tags = at(document, &["stats_config", "stats_tags"]);
                let is_ours = |tag: &Node| names(tag, "regex", "wasmcustom");
                self.has_labels |= tags.is_some_and(|tags| any(tags, &is_ours));
                self.add_resources(document);
            }
            _ => {}
        }
    }

    /// Finds what control planes provide: clusters, and routes.
    fn add_resources(&mut self, node: &Node) {
        let of_type = get(node, "@type").and_then(text).unwrap_or_default();
        let name = get(node, "name").and_then(text).map(str::to_owned);
        if of_type.ends_with("config.cluster.v3.Cluster") {
            self.has_clusters = true;
            self.clusters.extend(name.map(|name| (name, None)));
        } else if of_type.ends_with("config.route.v3.RouteConfiguration") {
            self.routes
                .extend(name.map(|name| (name, Routes::read(node))));
        } else {
            children(node).for_each(|child| self.add_resources(child));
        }
    }

    /// Adds Istio's clusters of a host.
    fn add_host(&mut self, host: &str, ports: &[Node], number: &str, only_in: Option<&str>) {
        let ports = ports.iter().filter_map(|port| get(port, number));
        for port in ports.filter_map(integer) {
            let name = format!("outbound|{port}||{host}");
            self.clusters.insert(name, only_in.map(str::to_owned));
        }
    }

    /// Finds clusters and failure policies in the patches of an object, whatever form these have.
    fn add_patches(&mut self, node: &Node) {
        let is_cluster = ["load_assignment", "connect_timeout", "lb_policy"];
        if let Some(name) = get(node, "name").and_then(text)
            && is_cluster.iter().any(|field| get(node, field).is_some())
        {
            self.clusters.insert(name.to_owned(), None);
        }
        // `failure_policy: FAIL_RELOAD`, or the `path` and `value` of a JSON patch.
        let names_policy = |path: &str| path.ends_with("failure_policy");
        let value = get(node, "value").and_then(text);
        let path = get(node, "path").and_then(text);
        let is_patch = path.is_some_and(names_policy) && value == Some(RELOAD);
        let policy = enumerated(node, "failure_policy");
        let is_field = policy.is_some_and(|policy| policy == RELOAD);
        self.reloads |= is_patch || is_field;
        // An EnvoyProxy's bootstrap may be YAML in a string.
        if let Some(inner) = text(node).filter(|inner| inner.contains("clusters:")) {
            for document in &load(inner).unwrap_or_default() {
                self.add_patches(document);
            }
        }
        children(node).for_each(|child| self.add_patches(child));
    }

    /// Reports what is wrong with the plugin's cluster of this name.
    fn lint_cluster(&self, plugin: &Plugin, name: &str, findings: &mut Findings<'_>) {
        match self.clusters.get(name) {
            Some(Some(other)) if *other != plugin.source.namespace => {
                return findings.error(
                    CLUSTER,
                    format!("the ServiceEntry of `{name}` is exported to its own namespace `{other}` only"),
                    "put plugin and ServiceEntry into one namespace, or export it to this one (`exportTo`)",
                );
            }
            Some(_) => return,
            None => {}
        }
        let of_file = plugin.clusters.as_ref();
        let of_file = of_file.map_or(&self.of_bootstraps, |clusters| &clusters.names);
        let known = self.clusters.keys().chain(of_file).map(String::as_str);
        if known.clone().any(|one| one == name) {
            return;
        }
        let Some((severity, add)) = self.how_to_add(plugin) else {
            return;
        };
        let message = format!(
            "nothing in these files provides a cluster `{name}`, so no request gets a verdict"
        );
        let remedy = match nearest(name, known) {
            Some(near) => format!("did you mean `{near}`? Otherwise {add}"),
            None => add.to_owned(),
        };
        findings.add(severity, CLUSTER, message, &remedy);
    }

    /// How to add a cluster for a plugin, and an error if these files show that there is none; `None` if they cannot.
    fn how_to_add(&self, plugin: &Plugin) -> Option<(Severity, &'static str)> {
        let error_if = |sure| if sure { Error } else { Warning };
        match (plugin.holder, &plugin.clusters) {
            (Holder::Nothing, _) => None,
            (Holder::Envoy, Some(clusters)) if clusters.dynamic => Some((
                Warning,
                "add it, unless the control plane of `cds_config` provides it",
            )),
            (Holder::Envoy, Some(_)) => Some((Error, "add it to `static_resources.clusters`")),
            (Holder::Envoy, None) if self.has_clusters => Some((
                Warning,
                "add it to the bootstrap or to the file of clusters, or check its file too",
            )),
            // A part of an Envoy configuration.
            (Holder::Envoy, None) if !self.has_patches => None,
            (Holder::Envoy | Holder::EnvoyExtensionPolicy, _) => Some((
                error_if(self.has_patches),
                "add it to the `bootstrap` of the EnvoyProxy, or check its file too",
            )),
            (Holder::WasmPlugin, _) => Some((
                error_if(self.has_service_entries),
                "write `outbound|PORT||HOST`, with host and port of the sidecar's ServiceEntry, or check its file too",
            )),
        }
    }
}

pub fn lint(
    plugin: &Plugin,
    cluster: &str,
    surroundings: &Surroundings,
    findings: &mut Findings<'_>,
) {
    surroundings.lint_cluster(plugin, cluster, findings);
    if plugin.holder == Holder::Envoy && surroundings.has_bootstrap && !surroundings.has_labels {
        findings.warn(
            "",
            "`stats_config.stats_tags` has no labels of this filter, so each rule and limit has a counter of its own name in \
             Prometheus, which alerts and dashboards do not find",
            "add part 1 of `sluicegate render --for envoy`",
        );
    }
    if let Some((field, message, remedy)) = failure(plugin, surroundings) {
        findings.warn(field, message, remedy);
        // It is not a field of the configuration, but one beside it.
        if let Some(last) = findings.found.last_mut() {
            last.line = plugin.line;
        }
    }
}

/// What is wrong with the settings for the case that the filter fails: its field, why, and the remedy.
fn failure(
    plugin: &Plugin,
    surroundings: &Surroundings,
) -> Option<(&'static str, &'static str, &'static str)> {
    const UNMETERED: &str = "all requests pass unmetered, and nothing shows it, while the module cannot be loaded or has failed";
    const STAYS_DEAD: &str =
        "if the filter's VM fails once, every request gets an error until the proxy restarts";
    const HANG: &str = "requests that wait when the filter's VM dies hang until their clients give up, or for five minutes";
    let (field, reload) = match plugin.holder {
        Holder::Nothing => return None,
        Holder::Envoy => (
            "failure_policy",
            "set `failure_policy: FAIL_RELOAD` beside `vm_config`",
        ),
        Holder::WasmPlugin => ("failStrategy", "set `failStrategy: FAIL_RELOAD`"),
        Holder::EnvoyExtensionPolicy => (
            "failure_policy",
            "Envoy Gateway sets no policy: add an EnvoyPatchPolicy that sets `failure_policy: FAIL_RELOAD`, or check its \
             file too",
        ),
    };
    let is_patched = plugin.holder == Holder::EnvoyExtensionPolicy && surroundings.reloads;
    let has_deadline = plugin.manager.as_ref();
    let has_deadline = has_deadline.is_none_or(|manager| manager.has_deadline);
    match plugin.failure_policy.as_deref() {
        _ if plugin.fail_open => {
            let gateways = plugin.holder == Holder::EnvoyExtensionPolicy;
            let field = if gateways { "failOpen" } else { "fail_open" };
            Some((field, UNMETERED, "remove it, and set FAIL_RELOAD"))
        }
        Some(OPEN) => Some((field, UNMETERED, reload)),
        policy if policy != Some(RELOAD) && !is_patched => Some((field, STAYS_DEAD, reload)),
        _ if !has_deadline => Some((
            "request_timeout",
            HANG,
            "set `request_timeout: 30s` in the connection manager",
        )),
        _ => None,
    }
}
