//! Which requests rules match: more checks than a decision may have, and paths that cannot exist.

use sluicegate_protocol::MAX_CHECKS;
use sluicegate_rules::config::schema::{Match, Rule};

use super::findings::Findings;

pub fn lint(rules: &[Rule], findings: &mut Findings<'_>) {
    for (index, rule) in rules.iter().enumerate() {
        paths(index, &rule.matcher, findings);
    }
    let enforced = rules.iter().filter(|rule| !rule.shadow);
    let checks: usize = enforced.map(|rule| rule.checks.len()).sum();
    if checks > MAX_CHECKS {
        findings.warn(
            "rules",
            format!(
                "a request that matches all rules has {checks} checks; one with more than {MAX_CHECKS} is answered \
                 with 503, whatever its rules say"
            ),
            "make sure that no request matches rules with more, or remove checks",
        );
    }
}

/// The conditions on the path of a match and of those in it.
fn paths(rule: usize, one: &Match, findings: &mut Findings<'_>) {
    let found = match &one.path_regex {
        _ if is_impossible(one) => Some((
            "no path meets all of these conditions, so this never matches".to_owned(),
            "remove one of them, or use `any` if one is enough".to_owned(),
        )),
        Some(regex) if is_meant_as_prefix(regex) => Some((
            format!("`path_regex` matches the whole path, and so `{regex}` nothing below it"),
            format!("use `path_prefix`, or `{regex}.*`; without `^` if the whole path is meant"),
        )),
        _ => None,
    };
    if let Some((message, remedy)) = found {
        let field = format!("rules[{rule}].match");
        findings.warn(field, message, &remedy);
    }
    let inside = one.all.iter().chain(&one.any).chain(one.not.as_deref());
    inside.for_each(|inner| paths(rule, inner, findings));
}

/// Whether conditions on the path exclude each other. Reports only what is certain: `path_regex` may match anything.
fn is_impossible(one: &Match) -> bool {
    // A path and the same with `/` at its end are one, so everything is compared with the longer.
    let path = one.path.as_deref();
    let path = path.map(|path| format!("{}/", path.trim_end_matches('/')));
    let template = one.path_template.as_deref();
    let template = template.and_then(|template| template.split(['{', '*']).next());
    let prefix = one.path_prefix.as_deref();
    let begins = |long: Option<&str>, short: Option<&str>| {
        long.zip(short)
            .is_none_or(|(long, short)| long.starts_with(short))
    };
    !begins(path.as_deref(), prefix)
        || !begins(path.as_deref(), template)
        || !(begins(prefix, template) || begins(template, prefix))
}

/// Elsewhere, `^` without `$` means a prefix.
fn is_meant_as_prefix(regex: &str) -> bool {
    let is_literal = |end: char| end.is_alphanumeric() || matches!(end, '/' | '-' | '_');
    regex.starts_with("^/") && regex.ends_with(is_literal)
}
