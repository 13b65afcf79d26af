//! Which rules cover which others: reports only what it can prove. And whether one request can have too many checks.

use sluicegate_protocol::MAX_CHECKS;
use sluicegate_rules::config::schema::{Configuration, Match};

use super::findings::{Findings, Severity};

pub fn lint(configuration: &Configuration, findings: &mut Findings<'_>) {
    for (index, rule) in configuration.rules.iter().enumerate() {
        let earlier = configuration.rules.iter().take(index);
        let mut stopping = earlier.filter(|earlier| earlier.stop && !earlier.shadow);
        if let Some(earlier) = stopping.find(|earlier| covers(&earlier.matcher, &rule.matcher)) {
            findings.add(
                Severity::Warning,
                format!("rules[{index}]"),
                format!(
                    "rule `{}` is never reached: rule `{}` before it has `stop` and matches every request that it would",
                    rule.name, earlier.name
                ),
                "move it up, remove `stop` from the other rule, or remove it",
            );
        }
    }
    let enforced = configuration.rules.iter().filter(|rule| !rule.shadow);
    let checks: usize = enforced.map(|rule| rule.checks.len()).sum();
    if checks > MAX_CHECKS {
        findings.add(
            Severity::Warning,
            "rules".to_owned(),
            format!(
                "a request that matches all rules has {checks} checks, and a decision may have {MAX_CHECKS}: above that, \
                 `when_unavailable` decides"
            ),
            "make sure that no request matches rules with more, or remove checks",
        );
    }
}

/// Whether every request that `narrow` matches is matched by `wide` too.
pub(super) fn covers(wide: &Match, narrow: &Match) -> bool {
    let path = wide.path.is_none() || wide.path == narrow.path;
    let prefix = wide.path_prefix.as_ref().is_none_or(|prefix| {
        let begins =
            |path: &Option<String>| path.as_ref().is_some_and(|path| path.starts_with(prefix));
        let literal = narrow.path_template.as_ref().map(|template| {
            template
                .split(['{', '*'])
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        prefix == "/" || begins(&narrow.path) || begins(&narrow.path_prefix) || begins(&literal)
    });
    let template = wide.path_template.is_none()
        || wide.path_template.as_deref() == Some("/**")
        || wide.path_template == narrow.path_template;
    let regex = wide.path_regex.is_none() || wide.path_regex == narrow.path_regex;
    let some_of = |wide: &[String], narrow: &[String]| {
        wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|one| wide.contains(one)))
    };
    path && prefix
        && template
        && regex
        && some_of(&wide.methods, &narrow.methods)
        && some_of(&wide.hosts, &narrow.hosts)
        && wide.headers.iter().all(|one| narrow.headers.contains(one))
        && wide.query.iter().all(|one| narrow.query.contains(one))
        && wide.all.iter().all(|one| narrow.all.contains(one))
        && (wide.any.is_empty() || wide.any == narrow.any)
        && (wide.not.is_none() || wide.not == narrow.not)
}
