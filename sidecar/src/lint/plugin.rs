//! Runs all lints.

use sluicegate_rules::config::schema::Configuration;
use sluicegate_rules::config::{ConfigError, validate};

use super::envoy_yaml::Plugin;
use super::findings::{Finding, Findings, Severity};
use super::surroundings::Surroundings;
use super::{envoy, keys, limits, matching, surroundings};
use crate::policy::Policy;

/// Lints a configuration, alone and, if a policy is given, together with it.
pub fn lint(plugin: &Plugin, surroundings: &Surroundings, policy: Option<&Policy>) -> Vec<Finding> {
    let lined = &plugin.configuration;
    let text = lined.value.to_string();
    let rejected = |error: ConfigError| Finding {
        line: lined.line(&error.field),
        severity: Severity::Error,
        field: error.field,
        message: error.why,
        remedy: "Envoy rejects this configuration until this is fixed".to_owned(),
    };
    let configuration = match sluicegate_rules::config::read(text.as_bytes()) {
        Ok(configuration) => configuration,
        Err(error) => return vec![rejected(error)],
    };
    let mut findings = Findings {
        lined,
        found: mistakes(&configuration).into_iter().map(rejected).collect(),
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
