//! What has to exist around a plugin: the sidecar's cluster, and a policy for the case that the filter fails. In Kubernetes
//! these are objects of their own, often in other files.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_rules::config::schema::Configuration;

use super::envoy_yaml::{Holder, Plugin};
use super::findings::{Finding, Findings, Severity};
use super::yaml::{Node, at, children, entries, fields, get, integer, load, text};

/// Envoy's name of the policy that starts a filter again.
const RELOAD: &str = "FAIL_RELOAD";
/// Envoy's and Istio's name of the policy that lets requests pass.
const OPEN: &str = "FAIL_OPEN";

/// What the objects of all files together provide.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Clusters that patches add to Envoy's configuration.
    clusters: BTreeSet<String>,
    /// The hosts that Istio knows from these files.
    hosts: BTreeMap<String, Host>,
    /// There is an object that could add a cluster: an EnvoyProxy, EnvoyPatchPolicy or EnvoyFilter.
    has_patches: bool,
    /// There is a ServiceEntry.
    has_service_entries: bool,
    /// A patch sets `failure_policy: FAIL_RELOAD`.
    reloads: bool,
}

#[derive(Debug, Default)]
struct Host {
    ports: BTreeSet<i64>,
    /// The only namespace that sees it; `None` if others do too.
    only_in: Option<String>,
}

impl Surroundings {
    /// Adds what a document provides.
    pub fn add(&mut self, kind: &str, namespace: &str, document: &Node) {
        match kind {
            "EnvoyProxy" | "EnvoyPatchPolicy" | "EnvoyFilter" => {
                self.has_patches = true;
                self.add_patches(document);
            }
            "ServiceEntry" => {
                self.has_service_entries = true;
                let spec = |field| {
                    at(document, &["spec", field])
                        .map(entries)
                        .unwrap_or_default()
                };
                let exported: Vec<_> = spec("exportTo").iter().filter_map(text).collect();
                let only_in = (exported == ["."]).then(|| namespace.to_owned());
                for host in spec("hosts").iter().filter_map(text) {
                    self.add_host(host.to_owned(), spec("ports"), "number", only_in.clone());
                }
            }
            "Service" => {
                let name = at(document, &["metadata", "name"]).and_then(text);
                let ports = at(document, &["spec", "ports"]).map(entries);
                let namespace = if namespace.is_empty() {
                    "default"
                } else {
                    namespace
                };
                if let (Some(name), Some(ports)) = (name, ports) {
                    let host = format!("{name}.{namespace}.svc.cluster.local");
                    self.add_host(host, ports, "port", None);
                }
            }
            _ => {}
        }
    }

    fn add_host(&mut self, host: String, ports: &[Node], number: &str, only_in: Option<String>) {
        let host = self.hosts.entry(host).or_default();
        let numbers = ports.iter().filter_map(|port| get(port, number));
        host.ports.extend(numbers.filter_map(integer));
        host.only_in = only_in;
    }

    /// Finds clusters and failure policies in the patches of an object, whatever form these have.
    fn add_patches(&mut self, node: &Node) {
        let is_cluster = ["load_assignment", "connect_timeout", "lb_policy"];
        if let Some(name) = get(node, "name").and_then(text)
            && is_cluster.iter().any(|field| get(node, field).is_some())
        {
            self.clusters.insert(name.to_owned());
        }
        // `failure_policy: FAIL_RELOAD`, or the `path` and `value` of a JSON patch.
        let names_policy = |path: &str| path.ends_with("failure_policy");
        let value = get(node, "value").and_then(text);
        let path = get(node, "path").and_then(text);
        let is_patch = path.is_some_and(names_policy) && value == Some(RELOAD);
        let is_field = fields(node).any(|(name, value)| {
            text(name).is_some_and(names_policy) && text(value) == Some(RELOAD)
        });
        self.reloads |= is_patch || is_field;
        // An EnvoyProxy's bootstrap may be YAML in a string.
        if let Some(inner) = text(node).filter(|inner| inner.contains("clusters:")) {
            for document in &load(inner).unwrap_or_default() {
                self.add_patches(document);
            }
        }
        children(node).for_each(|child| self.add_patches(child));
    }

    /// Why a plugin finds no cluster of this name, and how sure that is.
    fn missing(&self, plugin: &Plugin, name: &str) -> Option<(Severity, String, String)> {
        let found =
            |severity, message: String, remedy: &str| Some((severity, message, remedy.to_owned()));
        match (plugin.holder, &plugin.clusters) {
            (Holder::Nothing, _) => None,
            _ if self.clusters.contains(name) => None,
            (Holder::Envoy, Some(clusters)) => {
                if clusters.names.iter().any(|one| one == name) {
                    return None;
                }
                let message = match clusters.names.join("`, `") {
                    names if names.is_empty() => format!("this file has no cluster `{name}`"),
                    names => format!("this file has no cluster `{name}`, only `{names}`"),
                };
                let (severity, remedy) = if clusters.dynamic {
                    (
                        Severity::Warning,
                        "add it, unless the control plane of `cds_config` provides it: without it no request gets a verdict",
                    )
                } else {
                    (
                        Severity::Error,
                        "add it to `static_resources.clusters`: without it no request gets a verdict",
                    )
                };
                found(severity, message, remedy)
            }
            // A part of an Envoy configuration.
            (Holder::Envoy, None) if !self.has_patches => None,
            (Holder::Envoy, None) | (Holder::EnvoyExtensionPolicy, _) => {
                let severity = if self.has_patches {
                    Severity::Error
                } else {
                    Severity::Warning
                };
                let message = format!(
                    "no EnvoyProxy or EnvoyPatchPolicy in these files adds a cluster `{name}`"
                );
                found(
                    severity,
                    message,
                    "add the cluster to the `bootstrap` of the EnvoyProxy (docs/filter.md), or check its file too: without \
                     it no request gets a verdict",
                )
            }
            (Holder::WasmPlugin, _) => self.missing_in_istio(plugin, name),
        }
    }

    fn missing_in_istio(&self, plugin: &Plugin, name: &str) -> Option<(Severity, String, String)> {
        let parts: Vec<_> = name.split('|').collect();
        let [direction, port, _, host] = parts[..] else {
            return Some((
                Severity::Error,
                format!(
                    "`{name}` is no name of a cluster of Istio's, and no EnvoyFilter in these files adds it"
                ),
                "write `outbound|PORT||HOST`, with host and port of the sidecar's ServiceEntry"
                    .to_owned(),
            ));
        };
        let port: Option<i64> = port.parse().ok().filter(|_| direction == "outbound");
        match (self.hosts.get(host), port) {
            (_, None) => Some((
                Severity::Error,
                format!("`{name}` is not of the form `outbound|PORT||HOST`"),
                "write host and port of the sidecar's ServiceEntry".to_owned(),
            )),
            (None, Some(port)) => {
                let severity = if self.has_service_entries {
                    Severity::Error
                } else {
                    Severity::Warning
                };
                Some((
                    severity,
                    format!(
                        "no ServiceEntry in these files has the host `{host}` of the cluster `{name}`"
                    ),
                    format!(
                        "add a ServiceEntry with that host and port {port}, or check its file too: without it no request \
                         gets a verdict"
                    ),
                ))
            }
            (Some(known), Some(port)) if !known.ports.contains(&port) => {
                let ports: Vec<_> = known.ports.iter().map(ToString::to_string).collect();
                Some((
                    Severity::Error,
                    format!(
                        "the host `{host}` of the cluster `{name}` has no port {port}, only {}",
                        ports.join(", ")
                    ),
                    "use a port of its ServiceEntry: without it no request gets a verdict"
                        .to_owned(),
                ))
            }
            (Some(known), Some(_)) => {
                let only_in = known.only_in.as_ref()?;
                (*only_in != plugin.namespace).then(|| {
                    (
                        Severity::Error,
                        format!("the ServiceEntry of `{host}` is exported to its own namespace `{only_in}` only"),
                        "put plugin and ServiceEntry into one namespace, or export it to this one (`exportTo`)".to_owned(),
                    )
                })
            }
        }
    }
}

pub fn lint(
    plugin: &Plugin,
    configuration: &Configuration,
    surroundings: &Surroundings,
    findings: &mut Findings<'_>,
) {
    let cluster = &configuration.sidecar.cluster;
    if let Some((severity, message, remedy)) = surroundings.missing(plugin, cluster) {
        findings.add(severity, "sidecar.cluster".to_owned(), message, &remedy);
    }
    if let Some((field, message, remedy)) = failure(plugin, surroundings) {
        findings.found.push(Finding {
            line: plugin.line,
            severity: Severity::Warning,
            field: field.to_owned(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        });
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
    let policy = plugin.failure_policy.as_deref();
    match plugin.holder {
        Holder::Nothing => None,
        Holder::Envoy if plugin.fail_open => Some((
            "fail_open",
            UNMETERED,
            "remove it, and set `failure_policy: FAIL_RELOAD`",
        )),
        Holder::Envoy if policy == Some(OPEN) => Some((
            "failure_policy",
            UNMETERED,
            "set `failure_policy: FAIL_RELOAD`",
        )),
        Holder::Envoy if policy.is_none() => Some((
            "failure_policy",
            STAYS_DEAD,
            "set `failure_policy: FAIL_RELOAD` beside `vm_config`",
        )),
        Holder::Envoy
            if plugin
                .manager
                .as_ref()
                .is_some_and(|manager| !manager.has_deadline) =>
        {
            Some((
                "request_timeout",
                "requests that wait when the filter's VM dies hang until their clients give up, or for five minutes",
                "set `request_timeout: 30s` in the connection manager",
            ))
        }
        Holder::WasmPlugin if policy == Some(OPEN) => {
            Some(("failStrategy", UNMETERED, "set `failStrategy: FAIL_RELOAD`"))
        }
        Holder::WasmPlugin if policy.is_none() => Some((
            "failStrategy",
            STAYS_DEAD,
            "set `failStrategy: FAIL_RELOAD`",
        )),
        Holder::EnvoyExtensionPolicy if plugin.fail_open => Some((
            "failOpen",
            UNMETERED,
            "remove it, and set `failure_policy: FAIL_RELOAD` by an EnvoyPatchPolicy",
        )),
        Holder::EnvoyExtensionPolicy if !surroundings.reloads => Some((
            "failure_policy",
            STAYS_DEAD,
            "Envoy Gateway sets no policy: add an EnvoyPatchPolicy that sets `failure_policy: FAIL_RELOAD` (docs/filter.md), \
             or check its file too",
        )),
        Holder::Envoy | Holder::WasmPlugin | Holder::EnvoyExtensionPolicy => None,
    }
}
