//! Runs all lints on a plugin configuration.

use sluicegate_rules::config::schema::{Configuration, Rule, RuleSets};
use sluicegate_rules::config::{mistakes, read};

use super::envoy_yaml::Plugin;
use super::findings::{Finding, Findings};
use super::rule_sets::WrittenPolicy;
use super::surroundings::Surroundings;
use super::{envoy, keys, limits, matching, surroundings};
use crate::policy::Policy;

const REJECTED: &str = "Envoy rejects this configuration until this is fixed";

/// Lints a configuration, alone and, if a policy is given, together with it.
pub fn lint(
    plugin: &Plugin,
    surroundings: &Surroundings,
    policy: Option<&WrittenPolicy>,
) -> Vec<Finding> {
    let mut findings = Findings {
        source: &plugin.source,
        lines: &plugin.configuration,
        prefix: String::new(),
        found: Vec::new(),
    };
    let text = plugin.configuration.value.to_string();
    let configuration = match read(text.as_bytes()) {
        Ok(configuration) => configuration,
        Err(error) => {
            findings.error(error.field, error.why, REJECTED);
            return findings.found;
        }
    };
    for error in mistakes(&configuration) {
        findings.error(error.field, error.why, REJECTED);
    }
    if let Some(manager) = &plugin.manager {
        envoy::lint(manager, &mut findings);
    }
    let cluster = &configuration.sidecar.cluster;
    surroundings::lint(plugin, cluster, surroundings, &mut findings);
    let around = Some((plugin, &configuration));
    let limits = policy.and_then(|policy| policy.policy.as_ref());
    lint_rules(&configuration.rules, around, limits, &mut findings);
    let (Some(sets), Some(policy)) = (&configuration.rule_sets, policy) else {
        return findings.sorted();
    };
    let mut of_sets = Vec::new();
    for (field, name) in set_names(sets) {
        match policy.lint_set(name, around) {
            Some(found) => of_sets.extend(found),
            None => {
                let message = format!("the policy has no rule set `{name}`");
                let remedy = match policy.names() {
                    none if none.is_empty() => "add it to the policy, in `rules`".to_owned(),
                    names => limits::instead(name, &names),
                };
                findings.error(field, message, &remedy);
            }
        }
    }
    let mut found = findings.sorted();
    found.append(&mut of_sets);
    found
}

/// The rule sets that a configuration names, with the fields that do.
fn set_names(sets: &RuleSets) -> impl Iterator<Item = (String, &String)> {
    let others = sets.others.iter().enumerate();
    let others = others.map(|(index, name)| (format!("rule_sets.others[{index}]"), name));
    [("rule_sets.default".to_owned(), &sets.default)]
        .into_iter()
        .chain(others)
}

/// Lints rules: alone, with the plugin around them and with a policy, if these are known.
pub fn lint_rules(
    rules: &[Rule],
    around: Option<(&Plugin, &Configuration)>,
    policy: Option<&Policy>,
    findings: &mut Findings<'_>,
) {
    if let Some(manager) = around.and_then(|(plugin, _)| plugin.manager.as_ref()) {
        envoy::lint_rules(manager, rules, findings);
    }
    if around.is_some_and(|(_, configuration)| configuration.pepper.is_empty()) {
        keys::without_pepper(rules, findings);
    }
    matching::lint(rules, findings);
    keys::lint(rules, around.map(|(plugin, _)| plugin), findings);
    if let Some(policy) = policy {
        limits::lint(rules, policy, findings);
    }
}
