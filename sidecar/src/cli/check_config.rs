//! `sluicegate check-config`: reports mistakes before a request meets them.

use std::path::PathBuf;

use sluicegate::lint::{FoundPolicy, Plugin, Severity, lint};
use sluicegate::policy::Policy;
use sluicegate_rules::config::fingerprint;

use super::Failure;
use super::direct::{store_address, store_of_environment};
use super::manifests::{Manifests, nothing_in};
use super::stdout::{line, print};

/// Arguments of `check-config`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate check-config --policy policy.yaml --envoy envoy.yaml\n\n\
                  In CI:\n  helm template . | sluicegate check-config --envoy -"
)]
pub struct CheckConfig {
    /// The policy (YAML). Without it, the filter's configuration is checked against the policy in a ConfigMap of the files,
    /// if there is one.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file that contains the filter's configuration: an Envoy configuration, Kubernetes manifests (Istio's WasmPlugin and
    /// ServiceEntry, Envoy Gateway's EnvoyExtensionPolicy, EnvoyPatchPolicy and EnvoyProxy, ConfigMap), or the filter's
    /// configuration alone. A folder stands for all YAML and JSON files in it, `-` for standard input. Can be given several
    /// times; all files are checked together. Without it, only the policy is checked.
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    envoy: Vec<PathBuf>,
}

/// What was found so far.
#[derive(Default)]
struct Report {
    text: String,
    errors: usize,
    warnings: usize,
}

impl Report {
    fn add(&mut self, severity: Severity, at: &str, message: &str) {
        match severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        line!(self.text, "{at}: {severity}: {message}");
    }
}

impl CheckConfig {
    pub fn run(self) -> Result<(), Failure> {
        let given = match &self.policy {
            Some(path) => Some(Policy::load(path).map_err(Failure::usage)?),
            None => None,
        };
        // What `serve` would use in this environment.
        if let Some(policy) = &given {
            store_address(policy, store_of_environment().as_deref())?;
        }
        if self.envoy.is_empty() {
            return print("the policy is valid; no filter configuration was checked (`--envoy`)\n");
        }
        let manifests = Manifests::read(&self.envoy)?;
        if manifests.is_empty() {
            return Err(nothing_in(&self.envoy));
        }
        let mut report = Report::default();
        let mut policies = Vec::new();
        for (file, found) in manifests.policies() {
            match Policy::parse(&found.text) {
                Ok(policy) => policies.push((found.namespace.as_str(), policy)),
                Err(error) => refused(&mut report, file, found, &error),
            }
        }
        for (file, plugin) in manifests.plugins() {
            let policy = given.as_ref().or_else(|| policy_of(plugin, &policies));
            if policy.is_none() && policies.len() > 1 {
                let message = "several policies might be this plugin's, so its limits are not checked; name one with `--policy`";
                report.add(
                    Severity::Warning,
                    &place(file, plugin.line, &plugin.document),
                    message,
                );
            }
            check(&mut report, file, plugin, &manifests, policy);
        }
        print(&report.text)?;
        print(&format!(
            "{} errors, {} warnings\n",
            report.errors, report.warnings
        ))?;
        if report.errors == 0 {
            Ok(())
        } else {
            Err(Failure::usage("the configuration has errors"))
        }
    }
}

fn check(
    report: &mut Report,
    file: &str,
    plugin: &Plugin,
    manifests: &Manifests,
    policy: Option<&Policy>,
) {
    let findings = lint(plugin, &manifests.surroundings, policy);
    let object = match plugin.document.as_str() {
        "" => String::new(),
        document => format!("{document}: "),
    };
    for finding in findings {
        let message = format!(
            "{object}`{}`: {}; {}",
            finding.field, finding.message, finding.remedy
        );
        report.add(finding.severity, &place(file, finding.line, ""), &message);
    }
    // To be compared with the label `configuration` of `sluicegate_filter_info`.
    line!(
        report.text,
        "{file}:{}: {object}configuration {}",
        plugin.configuration.line(""),
        fingerprint(&plugin.configuration.value)
    );
}

/// A place in a file, and the Kubernetes object there.
fn place(file: &str, line: usize, document: &str) -> String {
    let separator = if document.is_empty() { "" } else { ": " };
    format!("{file}:{line}{separator}{document}")
}

/// Reports a policy that the sidecar would refuse.
fn refused(report: &mut Report, file: &str, found: &FoundPolicy, error: &str) {
    // Errors begin with the line of the policy's own text.
    let numbered = error
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "))
        .and_then(|(number, why)| Some((number.parse::<usize>().ok()?, why)));
    let (number, why) = numbered.unwrap_or((1, error));
    let message = format!(
        "{}: `{}`: {why}; the sidecar refuses this policy: a running one keeps the old, a new one does not start",
        found.document, found.field
    );
    report.add(
        Severity::Error,
        &place(file, found.line + number, ""),
        &message,
    );
}

/// The policy of a plugin's sidecar: the only one, or the only one of its namespace.
fn policy_of<'a>(plugin: &Plugin, policies: &'a [(&str, Policy)]) -> Option<&'a Policy> {
    if let [(_, policy)] = policies {
        return Some(policy);
    }
    let mut here = policies
        .iter()
        .filter(|(namespace, _)| *namespace == plugin.namespace);
    match (here.next(), here.next()) {
        (Some((_, policy)), None) => Some(policy),
        _ => None,
    }
}
