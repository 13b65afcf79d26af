//! Runs all lints on a plugin configuration.

use std::iter;

use sluicegate_rules::Hasher;
use sluicegate_rules::config::{from_json, nearest, settings};

use super::envoy_yaml::Plugin;
use super::findings::{Finding, Findings};
use super::rule_sets::WrittenPolicy;
use super::surroundings::Surroundings;
use super::{envoy, surroundings};

const REJECTED: &str = "Envoy rejects this configuration until this is fixed";

/// Lints a configuration, alone and, if a policy is given, together with it.
pub fn lint(
    plugin: &Plugin,
    surroundings: &Surroundings,
    policy: Option<&WrittenPolicy<'_>>,
) -> Vec<Finding> {
    let mut findings = Findings {
        source: &plugin.source,
        lines: &plugin.configuration,
        prefix: String::new(),
        found: Vec::new(),
    };
    let configuration = match from_json(&plugin.configuration.value) {
        Ok(configuration) => configuration,
        Err(error) => {
            findings.error(error.field, error.why, REJECTED);
            return findings.found;
        }
    };
    if let Err(error) = settings(plugin.configuration.value.clone()) {
        findings.error(error.field, error.why, REJECTED);
    }
    if let Some(manager) = &plugin.manager {
        envoy::lint(plugin, manager, &mut findings);
        let sets = configuration.rule_sets.as_ref();
        if sets.is_some_and(|sets| sets.by.is_some()) {
            envoy::lint_sets_by_route(manager, &mut findings);
        }
    }
    let cluster = &configuration.sidecar.cluster;
    surroundings::lint(plugin, cluster, surroundings, &mut findings);
    let limits = policy.and_then(|policy| policy.policy.as_ref().ok());
    let pepper = Hasher::new(&configuration.pepper).pepper_digest();
    let is_known = configuration.pepper_env.is_none();
    if is_known && limits.is_some_and(|policy| policy.peppers().any(|other| other != pepper)) {
        findings.error(
            "pepper",
            "the policy's consumers have keys that were hashed with another pepper, so no key is theirs",
            "set `pepper` to what is in the `--pepper-file` of `sluicegate consumers add`",
        );
    }
    let readable = policy.filter(|policy| policy.policy.is_ok() || !policy.sets.is_empty());
    let Some(policy) = readable else {
        return findings.sorted();
    };
    let sets = configuration.rule_sets.clone().unwrap_or_default();
    let mut of_sets = Vec::new();
    let names = iter::once(&sets.default).chain(&sets.others);
    for (index, name) in names.enumerate() {
        if let Some(found) = policy.lint_set(name, Some((plugin, &configuration))) {
            of_sets.extend(found);
            continue;
        }
        let field = match index.checked_sub(1) {
            None => "rule_sets.default".to_owned(),
            Some(other) => format!("rule_sets.others[{other}]"),
        };
        let remedy = match nearest(name, policy.sets.keys().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!(
                "add it to `rules` in the policy, without rules as `{name}: {{ rules: [] }}`"
            ),
        };
        let message = format!("the policy has no rule set `{name}`");
        findings.error(field, message, &remedy);
    }
    let mut found = findings.sorted();
    found.append(&mut of_sets);
    found
}
