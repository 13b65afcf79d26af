//! Runs all lints on the rules of a set.

use sluicegate_rules::config::schema::{Configuration, Rule};

use super::envoy_yaml::Plugin;
use super::findings::Findings;
use super::{envoy, keys, limits, matching, metadata};
use crate::policy::{Policy, StoreAddress};

/// Lints rules: alone, with the plugin around them and with a policy, if these are known.
pub fn lint_rules(
    rules: &[Rule],
    around: Option<(&Plugin, &Configuration)>,
    policy: Option<&Policy>,
    findings: &mut Findings<'_>,
) {
    if let Some(manager) = around.and_then(|(plugin, _)| plugin.manager.as_ref()) {
        envoy::lint_rules(manager, rules, findings);
        metadata::lint(manager, rules, findings);
    }
    // Nobody else can read the sidecar's own memory.
    let is_private = policy.is_some_and(|policy| matches!(policy.store, StoreAddress::Memory));
    let lacks_pepper = |of: &Configuration| of.pepper.is_empty() && of.pepper_env.is_none();
    if !is_private && around.is_some_and(|(_, configuration)| lacks_pepper(configuration)) {
        keys::without_pepper(rules, findings);
    }
    matching::lint(rules, findings);
    keys::lint(rules, around.map(|(plugin, _)| plugin), findings);
    if let Some(policy) = policy {
        limits::lint(rules, policy, findings);
    }
}
