//! Which requests rules match: more checks than a decision may have, and conditions, costs and rules that no request meets.

use sluicegate_protocol::MAX_CHECKS;
use sluicegate_rules::config::schema::{Check, Cost, Match, Rule, WhenMissing};
use sluicegate_rules::config::walk::{can_be_absent, checks};

use super::findings::Findings;
use super::keys::header;
use crate::policy::{covers, excludes, too_many_checks};

pub fn lint(rules: &[Rule], findings: &mut Findings<'_>) {
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("rules[{index}].match");
        let stops = |earlier: &&Rule| earlier.stop && covers(&earlier.matcher, &rule.matcher);
        if let Some(Rule { name, .. }) = rules.iter().take(index).find(stops) {
            let message = format!(
                "no request gets here: rule `{name}` before it has `stop` and matches all of its requests"
            );
            findings.warn(&field, message, "put this one first");
        }
        condition(&field, &rule.matcher, findings);
        let later = rules.iter().skip(index + 1);
        let mut hidden =
            later.filter(|later| !later.shadow && !excludes(&rule.matcher, &later.matcher));
        let always = |check: &Check| {
            let skips = check.when_missing == Some(WhenMissing::Skip);
            !(skips && check.key.iter().any(can_be_absent))
        };
        if let Some(Rule { name, .. }) = hidden.next().filter(|_| rule.stop)
            && !rule.checks.is_empty()
            && !rule.checks.iter().any(always)
        {
            findings.warn(
                format!("rules[{index}].stop"),
                format!("a request that lacks the keys of this rule meets no limit: its checks are skipped, and so is rule `{name}`"),
                "set `when_missing` to `{address: {}}` or `deny`, or remove `stop`",
            );
        }
    }
    costs(rules, findings);
    let enforced = rules.iter().filter(|rule| !rule.shadow);
    let checks: usize = enforced.map(|rule| rule.checks.len()).sum();
    // If all requests of a rule have too many, that is among the policy's mistakes.
    if checks > MAX_CHECKS && too_many_checks(rules).is_none() {
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

/// The conditions of a match and of those in it.
fn condition(field: &str, one: &Match, findings: &mut Findings<'_>) {
    for sent in &one.headers {
        header(field, &sent.name, findings);
    }
    exact_path(field, one.path.as_deref(), findings);
    let found = match &one.path_regex {
        _ if excludes(one, one) => Some((
            "no request meets all of these conditions, so this never matches".to_owned(),
            "remove one of them, or use `any` if one is enough".to_owned(),
        )),
        Some(regex) if is_meant_as_prefix(regex) => Some((
            format!("`path_regex` matches the whole path, and so `{regex}` nothing below it"),
            format!("use `path_prefix`, or `{regex}.*`; without `^` if the whole path is meant"),
        )),
        _ => None,
    };
    if let Some((message, remedy)) = found {
        findings.warn(field, message, &remedy);
    }
    let inside = one.all.iter().chain(&one.any).chain(one.not.as_deref());
    inside.for_each(|inner| condition(field, inner, findings));
}

/// The entries of tables of costs.
fn costs(rules: &[Rule], findings: &mut Findings<'_>) {
    for (at, rule, check) in checks(rules) {
        let Cost::Varying(varying) = &check.cost else {
            continue;
        };
        let table = varying.table.as_deref().unwrap_or_default();
        let mut before = Vec::new();
        for (index, entry) in table.iter().enumerate() {
            let field = format!("{at}.cost.table[{index}]");
            exact_path(&field, entry.template.as_deref(), findings);
            let mut one = Match {
                path_template: entry.template.clone(),
                methods: entry.methods.clone(),
                ..Match::default()
            };
            before.push(one.clone());
            one.all.push(rule.matcher.clone());
            let mut earlier = before.iter().take(index);
            if excludes(&one, &one) {
                let message = "no request that the rule's `match` lets through has this cost";
                findings.warn(&field, message, "remove it, or let `match` include it");
            } else if let Some(at) = earlier.position(|earlier| covers(earlier, &one)) {
                let message = format!(
                    "no request has this cost: entry {} of the table matches all of its requests",
                    at + 1
                );
                findings.warn(&field, message, "put this one before that");
            }
        }
    }
}

/// A path that stands for itself alone, where others are to be expected below it.
fn exact_path(field: &str, path: Option<&str>, findings: &mut Findings<'_>) {
    let path = path.unwrap_or_default().trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or_default();
    let version = name.strip_prefix('v').unwrap_or_default();
    if name == "api" || version.starts_with(|c: char| c.is_ascii_digit()) {
        let remedy = format!(
            "for all that begins so write `{path}/` (`path_prefix`; in a table of costs `{path}/**`)"
        );
        findings.warn(
            field,
            format!("`{path}` is this path alone, and nothing below it"),
            &remedy,
        );
    }
}

/// Elsewhere, `^` without `$` means a prefix.
fn is_meant_as_prefix(regex: &str) -> bool {
    let is_literal = |end: char| end.is_alphanumeric() || matches!(end, '/' | '-' | '_');
    regex.starts_with("^/") && regex.ends_with(is_literal)
}
