//! Compares the checks of rules with a policy's limits.

use sluicegate_engine::BucketSpec;
use sluicegate_rules::config::schema::{Check, Cost, Rule};
use sluicegate_rules::config::walk::{checks, limit_names};

use super::findings::Findings;
use super::findings::Severity::{Error, Warning};
use crate::policy::{Limit, Policy};

pub fn lint(rules: &[Rule], policy: &Policy, findings: &mut Findings<'_>) {
    for (at, rule, check) in checks(rules) {
        // Of consumers: the limit of those who have none of their own.
        let limit = |name: String| {
            let of_consumers = policy.resolve(&name, "").map(|(limit, _)| limit.to_owned());
            policy.limit(&of_consumers.unwrap_or(name))
        };
        let named = limit_names(&at, check).into_iter();
        let limits: Vec<_> = named
            .filter_map(|(_, name)| limit(name.to_owned()))
            .collect();
        let most = limits.iter().map(|limit| limit.most_of_any());
        let most = most.collect::<Option<Vec<_>>>().into_iter().flatten().max();
        for limit in limits {
            // In shadow, or if not enforced, no request is denied; what allows nothing is meant to.
            if !rule.shadow && limit.is_enforced() && !limit.allows_nothing() {
                check_costs(&at, check, limit, most, findings);
            }
            check_quota(&at, check, limit, findings);
        }
    }
}

/// Costs that are more than the limit holds: errors if they are for every key, since `certain` is the most of all limits of the
/// check, whatever overrides, tiers and requests say.
fn check_costs(
    at: &str,
    check: &Check,
    limit: &Limit,
    certain: Option<u64>,
    findings: &mut Findings<'_>,
) {
    let (most, name) = (limit.most(), &limit.name);
    let most = most.max(limit.max_requested_quota.unwrap_or(0));
    let mut compare = |can_be_error, field: &str, cost| {
        let is_error = can_be_error && certain.is_some_and(|certain| cost > certain);
        if cost > most {
            findings.add(
                if is_error { Error } else { Warning },
                format!("{at}.cost{field}"),
                format!("a cost of {cost} exceeds what limit `{name}` can ever hold ({most}): such a request is never admitted"),
                "lower the cost or raise the limit",
            );
        }
    };
    let varying = match &check.cost {
        Cost::Constant(cost) => return compare(true, "", *cost),
        Cost::Varying(varying) => varying,
    };
    for (index, entry) in varying.table.iter().flatten().enumerate() {
        compare(true, &format!(".table[{index}].cost"), entry.cost);
    }
    compare(true, ".default", varying.default);
    compare(false, ".max", varying.max.unwrap_or(0));
}

/// A window of a limit that never decides, and the one that admits no more than that in its time.
pub fn idle_window(limit: &Limit) -> Option<(&BucketSpec, &BucketSpec)> {
    let windows = limit.windows.iter();
    let mut pairs = windows
        .clone()
        .flat_map(|one| windows.clone().map(move |other| (one, other)));
    pairs.find(|(idle, other)| {
        let (length, within) = (idle.window_us, other.window_us);
        let never_decides = |times| other.quota.saturating_mul(times) <= idle.quota;
        length != within && idle.touches(within).is_some_and(never_decides)
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
