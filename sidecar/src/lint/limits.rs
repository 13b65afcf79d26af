//! Compares a configuration's checks with a policy's limits.

use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_rules::config::nearest;
use sluicegate_rules::config::schema::{Check, Configuration, Cost, Limit as Named, WhenMissing};

use super::findings::{Findings, Severity, checks};
use super::matching::covers;
use crate::policy::{Limit, Policy};

pub fn lint(configuration: &Configuration, policy: &Policy, findings: &mut Findings<'_>) {
    for (_, at, _, check) in checks(configuration) {
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
    for (r, at, rule, check) in checks(configuration) {
        if rule.shadow {
            continue;
        }
        let tighter = checks(configuration).find(|(other_r, other_at, other_rule, other)| {
            // A rule after one with `stop` may not be evaluated; of two equally tight checks, the first is kept.
            let asked_too =
                *other_r < r || (*other_r == r && *other_at < at) || (*other_r > r && !rule.stop);
            let earlier = (*other_r, other_at) < (r, &at);
            *other_at != at
                && !other_rule.shadow
                && asked_too
                && covers(&other_rule.matcher, &rule.matcher)
                && counts_every_subject_of(other, check)
                && is_tighter(policy, other, check)
                && (earlier || !is_tighter(policy, check, other))
        });
        if let Some((_, _, other_rule, other)) = tighter {
            let name = |check: &Check| match &check.limit {
                Named::Name(name) => name.clone(),
                Named::Tiers(_) => String::new(),
            };
            findings.add(
                Severity::Warning,
                format!("{at}.limit"),
                format!(
                    "limit `{}` can never deny here: limit `{}` of rule `{}` is always tighter for the same subject",
                    name(check),
                    name(other),
                    other_rule.name
                ),
                "remove the check, or loosen the tighter limit",
            );
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
    findings.add(
        Severity::Error,
        field,
        format!("the policy has no limit `{name}`"),
        &remedy,
    );
}

fn check_costs(at: &str, check: &Check, limit: &Limit, findings: &mut Findings<'_>) {
    let most = limit.most();
    let mut too_much = |severity, field: String, cost: u64| {
        if cost > most {
            findings.add(
                severity,
                field,
                format!("a cost of {cost} exceeds what limit `{}` can ever hold ({most}): such a request is never admitted", limit.name),
                "lower the cost or raise the limit",
            );
        }
    };
    match &check.cost {
        Cost::Constant(cost) => too_much(Severity::Error, format!("{at}.cost"), *cost),
        Cost::Varying(varying) => {
            for (index, entry) in varying.table.iter().flatten().enumerate() {
                too_much(
                    Severity::Error,
                    format!("{at}.cost.table[{index}].cost"),
                    entry.cost,
                );
            }
            too_much(
                Severity::Error,
                format!("{at}.cost.default"),
                varying.default,
            );
            if let Some(max) = varying.max {
                too_much(Severity::Warning, format!("{at}.cost.max"), max);
            }
        }
    }
}

fn check_quota(at: &str, check: &Check, limit: &Limit, findings: &mut Findings<'_>) {
    if check.quota.is_some() && limit.max_requested_quota.is_none() {
        findings.add(
            Severity::Error,
            format!("{at}.quota"),
            format!(
                "limit `{}` does not accept a quota from a request: its own counts always",
                limit.name
            ),
            "say `quota_from_request: { max: N }` for the limit in the policy, or remove `quota`",
        );
    }
}

/// Whether `wide` counts every request that `narrow` counts: its key has no component that the other's lacks.
fn counts_every_subject_of(wide: &Check, narrow: &Check) -> bool {
    let constant = |check: &Check| {
        check
            .key
            .iter()
            .all(|component| component.constant.is_some())
    };
    let components = wide
        .key
        .iter()
        .all(|component| narrow.key.contains(component));
    // A missing component must not skip the wide check where the narrow one applies.
    let missing = wide.when_missing == narrow.when_missing
        || !matches!(narrow.when_missing, Some(WhenMissing::Use(_)));
    constant(wide) || (components && missing)
}

/// Whether one check's limit always denies before the other's would.
fn is_tighter(policy: &Policy, tight: &Check, loose: &Check) -> bool {
    let (Named::Name(tight_name), Named::Name(loose_name)) = (&tight.limit, &loose.limit) else {
        return false;
    };
    if tight.quota.is_some() || loose.quota.is_some() {
        return false;
    }
    let (Cost::Constant(tight_cost), Cost::Constant(loose_cost)) = (&tight.cost, &loose.cost)
    else {
        return false;
    };
    let (Some(tight), Some(loose)) = (policy.limit(tight_name), policy.limit(loose_name)) else {
        return false;
    };
    loose.windows.iter().all(|window| {
        let requests = tight
            .windows
            .iter()
            .map(|spec| max_admitted(spec, window.window_us) / u128::from(*tight_cost).max(1));
        let requests = requests.min().unwrap_or(u128::MAX);
        // A token bucket holds less than its quota unless it is full, so it may deny earlier.
        let room = match window.algorithm {
            Algorithm::TokenBucket { .. } => return false,
            _ => u128::from(window.quota),
        };
        requests.saturating_mul(u128::from(*loose_cost)) <= room
    })
}

/// The most units that a window can admit within any interval of this length.
fn max_admitted(spec: &BucketSpec, time_us: u64) -> u128 {
    let shortest_us = match spec.algorithm {
        Algorithm::CalendarWindow(calendar) => calendar.shortest_us(),
        _ => spec.window_us,
    };
    let windows = u128::from(time_us.div_ceil(shortest_us.max(1)));
    let quota = u128::from(spec.quota);
    match spec.algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => windows * quota,
        // Aligned windows: one more can begin within the time.
        Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => (windows + 1) * quota,
        Algorithm::TokenBucket { burst } => u128::from(burst) + windows * quota,
    }
}
