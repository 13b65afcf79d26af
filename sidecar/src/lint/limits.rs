//! Compares the checks of rules with a policy's limits.

use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_rules::config::nearest;
use sluicegate_rules::config::schema::{Check, Cost, Rule};
use sluicegate_rules::config::walk::{checks, limit_names};

use super::findings::{Findings, Severity};
use crate::policy::{Limit, Policy};

pub fn lint(rules: &[Rule], policy: &Policy, findings: &mut Findings<'_>) {
    for (at, _, check) in checks(rules) {
        for (field, name) in limit_names(&at, check) {
            // Of consumers: the limit of those who have none of their own.
            let name = policy.resolve(name, "").map_or(name, |(limit, _)| limit);
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
    let mut compare = |severity, field: &str, cost| {
        if cost > most {
            findings.add(
                severity,
                format!("{at}.cost{field}"),
                format!("a cost of {cost} exceeds what limit `{name}` can ever hold ({most}): such a request is never admitted"),
                "lower the cost or raise the limit",
            );
        }
    };
    let varying = match &check.cost {
        Cost::Constant(cost) => return compare(Severity::Error, "", *cost),
        Cost::Varying(varying) => varying,
    };
    for (index, entry) in varying.table.iter().flatten().enumerate() {
        let field = format!(".table[{index}].cost");
        compare(Severity::Error, &field, entry.cost);
    }
    compare(Severity::Error, ".default", varying.default);
    compare(Severity::Warning, ".max", varying.max.unwrap_or(0));
}

/// A window of a limit that never decides, and the one that admits no more than that in its time.
pub fn idle_window(limit: &Limit) -> Option<(&BucketSpec, &BucketSpec)> {
    let windows = limit.windows.iter();
    let mut pairs = windows
        .clone()
        .flat_map(|one| windows.clone().map(move |other| (one, other)));
    pairs.find(|(idle, other)| {
        let (length, within) = (idle.window_us, other.window_us);
        // How many windows of the other it can touch.
        let times = match idle.algorithm {
            Algorithm::SlidingLog => length.div_ceil(within),
            Algorithm::FixedWindow if length.is_multiple_of(within) => length / within,
            Algorithm::TokenBucket { .. } => return false,
            _ if length < within => 1,
            _ => return false,
        };
        length != within && other.quota.saturating_mul(times) <= idle.quota
    })
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
