//! Compares a configuration's checks with a policy's limits.

use sluicegate_rules::config::nearest;
use sluicegate_rules::config::schema::{Check, Configuration, Cost, Limit as Named};

use super::findings::{Findings, Severity, checks};
use crate::policy::{Limit, Policy};

pub fn lint(configuration: &Configuration, policy: &Policy, findings: &mut Findings<'_>) {
    for (at, _, check) in checks(configuration) {
        for (field, name) in limit_names(&at, check) {
            match policy.limit(name) {
                None => report_unknown(policy, field, name, findings),
                Some(limit) => {
                    check_costs(&at, check, limit, findings);
                    check_quota(&at, check, limit, findings);
                }
            }
        }
    }
}

/// Every limit that a check names, with its field.
fn limit_names<'a>(at: &str, check: &'a Check) -> Vec<(String, &'a str)> {
    match &check.limit {
        Named::Name(name) => vec![(format!("{at}.limit"), name)],
        Named::Tiers(tiers) => {
            let tiers = tiers.map.iter();
            tiers
                .map(|(tier, name)| (format!("{at}.limit.map.{tier}"), name.as_str()))
                .collect()
        }
    }
}

fn report_unknown(policy: &Policy, field: String, name: &str, findings: &mut Findings<'_>) {
    let known: Vec<&str> = policy.limits().map(|limit| limit.name.as_str()).collect();
    let remedy = nearest(name, known.iter().copied()).map_or_else(
        || format!("the policy has `{}`", known.join("`, `")),
        |near| format!("did you mean `{near}`?"),
    );
    findings.error(field, format!("the policy has no limit `{name}`"), &remedy);
}

fn check_costs(at: &str, check: &Check, limit: &Limit, findings: &mut Findings<'_>) {
    let (most, name) = (limit.most(), &limit.name);
    for (severity, field, cost) in costs(&check.cost) {
        if cost > most {
            findings.add(
                severity,
                format!("{at}.cost{field}"),
                format!("a cost of {cost} exceeds what limit `{name}` can ever hold ({most}): such a request is never admitted"),
                "lower the cost or raise the limit",
            );
        }
    }
}

/// What a request may cost, each with its field, and how serious it is if that is too much.
fn costs(cost: &Cost) -> Vec<(Severity, String, u64)> {
    let varying = match cost {
        Cost::Constant(cost) => return vec![(Severity::Error, String::new(), *cost)],
        Cost::Varying(varying) => varying,
    };
    let table = varying.table.iter().flatten().enumerate();
    table
        .map(|(index, entry)| (Severity::Error, format!(".table[{index}].cost"), entry.cost))
        .chain([(Severity::Error, ".default".to_owned(), varying.default)])
        .chain(
            varying
                .max
                .map(|max| (Severity::Warning, ".max".to_owned(), max)),
        )
        .collect()
}

fn check_quota(at: &str, check: &Check, limit: &Limit, findings: &mut Findings<'_>) {
    if check.quota.is_some() && limit.max_requested_quota.is_none() {
        findings.error(
            format!("{at}.quota"),
            format!(
                "limit `{}` does not accept a quota from a request: its own counts always",
                limit.name
            ),
            "say `quota_from_request: { max: N }` for the limit in the policy, or remove `quota`",
        );
    }
}
