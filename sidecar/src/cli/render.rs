//! `sluicegate render`: prints the parts that belong into an Envoy configuration that exists.

use std::path::PathBuf;

use sluicegate::policy::Policy;

use super::Failure;
use super::endpoint::DECISIONS;
use super::envoy_example::{Example, Filter, HostPort, MODULES, rule_set};
use super::stdout::print;

/// Arguments of `render`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate render --for envoy --policy policy.yaml > parts.yaml"
)]
pub struct Render {
    /// The proxy to print parts for.
    #[arg(long = "for", value_enum, value_name = "PROXY")]
    _proxy: Proxy,
    /// The policy (YAML), which names the rule set; without it, the one called `default`.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Where Envoy reaches the sidecar's decision port: a host or an address, and the port.
    #[arg(long, value_name = "URL", default_value = DECISIONS)]
    sidecar: HostPort,
    #[command(flatten)]
    filter: Filter,
}

#[derive(Clone, clap::ValueEnum)]
enum Proxy {
    /// A static Envoy configuration.
    Envoy,
}

const HEAD: &str = "# Sluicegate's parts of an Envoy configuration. Paste each where its first line says, indented as its new neighbours\n\
                    # are. Where a field is there already, change it instead of repeating it, and add the entry of a list to yours.\n\
                    # Afterwards: sluicegate check-config --policy policy.yaml --envoy envoy.yaml\n";

/// Where each part belongs, and the texts of the example with which it begins and before which it ends.
const PARTS: [(&str, &str, &str); 5] = [
    (
        "1. At the top level.",
        "# Makes rule and limit labels",
        "static_resources:",
    ),
    (
        "2. In the `typed_config` of each HTTP connection manager, beside `http_filters`.",
        "# Needed if clients",
        "route_config:",
    ),
    (
        "3. In its `route_config` (or the RouteConfiguration that RDS provides), beside `virtual_hosts`.",
        "# Removes clients' copies",
        "virtual_hosts:",
    ),
    (
        "4. In its `http_filters`: after `cors`, `jwt_authn` and `ext_authz`, and before `router`.",
        "- name: sluicegate\n",
        "- name: envoy.filters.http.router",
    ),
    (
        "5. In `clusters` of `static_resources`.",
        "- name: sluicegate\n      type:",
        // It is the last.
        "dynamic_resources:",
    ),
];

impl Render {
    pub fn run(self) -> Result<(), Failure> {
        let policy = self.policy.as_deref().map(Policy::load).transpose();
        let policy = policy.map_err(Failure::usage)?;
        let rule_set = policy.as_ref().map_or(Ok("default"), rule_set)?;
        // Envoy may run elsewhere, so a file that is named need not exist here.
        let [built, installed] = MODULES.map(PathBuf::from);
        let found = if built.is_file() { built } else { installed };
        let module = self.filter.module.as_ref().unwrap_or(&found);
        let mut example = Example::with(&self.filter, module, rule_set)?;
        example.set_cluster("sluicegate", 9180, &self.sidecar);
        let parts = PARTS
            .map(|(place, start, end)| format!("---\n# {place}\n{}", part(&example.0, start, end)));
        print(&format!("{HEAD}{}", parts.concat()))
    }
}

/// The part of a text between two others, without its indentation.
fn part(text: &str, start: &str, end: &str) -> String {
    let before = text.split_once(start).map_or(text, |(before, _)| before);
    let rest = text.get(before.len()..).unwrap_or_default();
    let part = rest.split_once(end).map_or(rest, |(part, _)| part);
    let indentation = before.rsplit('\n').next().unwrap_or_default();
    let lines = part.trim_end().lines();
    let lines = lines.map(|line| format!("{}\n", line.strip_prefix(indentation).unwrap_or(line)));
    lines.collect()
}
