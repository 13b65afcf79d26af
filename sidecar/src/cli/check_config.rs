//! `sluicegate check-config`: reports mistakes before a request meets them.

use std::path::{Path, PathBuf};

use sluicegate::lint::plugins;
use sluicegate::lint::{Severity, lint};
use sluicegate::policy::Policy;

use super::Failure;
use super::stdout::{line, print};

/// Arguments of `check-config`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate check-config --policy policy.yaml --envoy envoy.yaml"
)]
pub struct CheckConfig {
    /// The policy (YAML). Without it, the filter's configuration is checked on its own.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file that contains the filter's configuration: an Envoy configuration, an Istio WasmPlugin, an Envoy Gateway
    /// EnvoyExtensionPolicy, or the filter's configuration alone. Can be given several times. Without it, only the
    /// policy is checked.
    #[arg(long, value_name = "FILE", required_unless_present = "policy")]
    envoy: Vec<PathBuf>,
}

impl CheckConfig {
    pub fn run(self) -> Result<(), Failure> {
        let policy = match &self.policy {
            Some(path) => Some(Policy::load(path).map_err(Failure::usage)?),
            None => None,
        };
        let (mut errors, mut warnings) = (0, 0);
        for file in &self.envoy {
            let mut text = String::new();
            for plugin in plugins_in(file)? {
                for finding in lint(&plugin, policy.as_ref()) {
                    match finding.severity {
                        Severity::Error => errors += 1,
                        Severity::Warning => warnings += 1,
                    }
                    line!(
                        text,
                        "{}:{}: {}: `{}`: {}; {}",
                        file.display(),
                        finding.line,
                        finding.severity,
                        finding.field,
                        finding.message,
                        finding.remedy
                    );
                }
            }
            print(&text)?;
        }
        if self.envoy.is_empty() {
            return print("the policy is valid; no filter configuration was checked (`--envoy`)\n");
        }
        print(&format!("{errors} errors, {warnings} warnings\n"))?;
        if errors == 0 {
            Ok(())
        } else {
            Err(Failure::usage("the configuration has errors"))
        }
    }
}

/// The filter configurations in a file.
///
/// # Errors
/// The file cannot be read or contains none.
pub fn plugins_in(file: &Path) -> Result<Vec<sluicegate::lint::Plugin>, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
    let found = plugins(&text).map_err(|error| Failure::usage(format!("{shown} {error}")))?;
    if found.is_empty() {
        return Err(Failure::usage(format!(
            "{shown} contains no configuration of this filter: neither an Envoy Wasm filter, nor a WasmPlugin, nor an \
             EnvoyExtensionPolicy with `sidecar` and `rules`"
        )));
    }
    Ok(found)
}
