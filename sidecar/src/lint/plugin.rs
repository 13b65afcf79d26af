//! Runs all lints.

use sluicegate_rules::config::schema::Configuration;
use sluicegate_rules::config::{ConfigError, validate};

use super::envoy_yaml::Plugin;
use super::findings::{Finding, Findings};
use super::surroundings::Surroundings;
use super::{envoy, keys, limits, matching, surroundings};
use crate::policy::Policy;

const REJECTED: &str = "Envoy rejects this configuration until this is fixed";

/// Lints a configuration, alone and, if a policy is given, together with it.
pub fn lint(plugin: &Plugin, surroundings: &Surroundings, policy: Option<&Policy>) -> Vec<Finding> {
    let mut findings = Findings {
        plugin,
        found: Vec::new(),
    };
    let text = plugin.configuration.value.to_string();
    let configuration = match sluicegate_rules::config::read(text.as_bytes()) {
        Ok(configuration) => configuration,
        Err(error) => {
            findings.error(error.field, error.why, REJECTED);
            return findings.found;
        }
    };
    for error in mistakes(&configuration) {
        findings.error(error.field, error.why, REJECTED);
    }
    envoy::lint(&configuration, &mut findings);
    surroundings::lint(&configuration, surroundings, &mut findings);
    matching::lint(&configuration, &mut findings);
    keys::lint(&configuration, &mut findings);
    if let Some(policy) = policy {
        limits::lint(&configuration, policy, &mut findings);
    }
    findings.found.sort_by_key(|finding| finding.line);
    findings.found
}

/// Why the filter rejects a configuration, for each of its rules.
fn mistakes(configuration: &Configuration) -> Vec<ConfigError> {
    let Err(first) = validate(configuration) else {
        return Vec::new();
    };
    let mut alone = configuration.clone();
    let mut found = Vec::new();
    for (index, rule) in configuration.rules.iter().enumerate() {
        alone.rules = vec![rule.clone()];
        if let Err(mut error) = validate(&alone)
            && let Some(within) = error.field.strip_prefix("rules[0]")
        {
            error.field = format!("rules[{index}]{within}");
            found.push(error);
        }
    }
    if !found.iter().any(|error| error.field == first.field) {
        found.push(first);
    }
    found
}
