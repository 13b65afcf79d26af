//! Which requests rules match: more checks than a decision may have.

use sluicegate_protocol::MAX_CHECKS;
use sluicegate_rules::config::schema::Configuration;

use super::findings::{Findings, Severity};

pub fn lint(configuration: &Configuration, findings: &mut Findings<'_>) {
    let enforced = configuration.rules.iter().filter(|rule| !rule.shadow);
    let checks: usize = enforced.map(|rule| rule.checks.len()).sum();
    if checks > MAX_CHECKS {
        findings.add(
            Severity::Warning,
            "rules".to_owned(),
            format!(
                "a request that matches all rules has {checks} checks; one with more than {MAX_CHECKS} is answered \
                 with 503, whatever its rules say"
            ),
            "make sure that no request matches rules with more, or remove checks",
        );
    }
}
