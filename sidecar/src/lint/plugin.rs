//! Runs all lints.

use sluicegate_rules::config::validate;

use super::envoy_yaml::Plugin;
use super::findings::{Finding, Findings, Severity};
use super::surroundings::Surroundings;
use super::{envoy, keys, limits, matching, surroundings};
use crate::policy::Policy;

/// Lints a configuration, alone and, if a policy is given, together with it.
pub fn lint(plugin: &Plugin, surroundings: &Surroundings, policy: Option<&Policy>) -> Vec<Finding> {
    let lined = &plugin.configuration;
    let text = lined.value.to_string();
    let read = sluicegate_rules::config::read(text.as_bytes());
    let configuration =
        match read.and_then(|configuration| validate(&configuration).map(|_| configuration)) {
            Ok(configuration) => configuration,
            Err(error) => {
                return vec![Finding {
                    line: lined.line(&error.field),
                    severity: Severity::Error,
                    field: error.field,
                    message: error.why,
                    remedy: "Envoy rejects this configuration until this is fixed".to_owned(),
                }];
            }
        };
    let mut findings = Findings {
        lined,
        found: Vec::new(),
    };
    envoy::lint(plugin, &configuration, &mut findings);
    surroundings::lint(plugin, &configuration, surroundings, &mut findings);
    matching::lint(&configuration, &mut findings);
    keys::lint(plugin, &configuration, &mut findings);
    if let Some(policy) = policy {
        limits::lint(&configuration, policy, &mut findings);
    }
    findings.found.sort_by_key(|finding| finding.line);
    findings.found
}
