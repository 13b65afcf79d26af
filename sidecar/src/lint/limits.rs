//! A configuration's checks against a policy's limits.

use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_rules::config::nearest;
use sluicegate_rules::config::written::{Check, Configuration, Cost, Limit as Named, WhenMissing};

use super::findings::{Findings, Severity, checks};
use super::matching::covers;
use crate::policy::{Limit, Policy};

pub fn review(written: &Configuration, policy: &Policy, findings: &mut Findings<'_>) {
    for (_, at, _, check) in checks(written) {
        for (field, name) in names(&at, check) {
            match policy.limit(name) {
                None => unknown(policy, field, name, findings),
                Some(limit) => costs(&at, check, limit, findings),
            }
        }
    }
    for (r, at, rule, check) in checks(written) {
        if rule.shadow {
            continue;
        }
        let tighter = checks(written).find(|(other_r, other_at, other_rule, other)| {
            // A rule that comes after one that stops may not be asked; of two that are as tight, the first stays.
            let asked_too =
                *other_r < r || (*other_r == r && *other_at < at) || (*other_r > r && !rule.stop);
            let earlier = (*other_r, other_at) < (r, &at);
            *other_at != at
                && !other_rule.shadow
                && asked_too
                && covers(&other_rule.matcher, &rule.matcher)
                && is_as_wide(other, check)
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

/// Every limit that a check may name, with its field.
fn names<'a>(at: &str, check: &'a Check) -> Vec<(String, &'a str)> {
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

fn unknown(policy: &Policy, field: String, name: &str, findings: &mut Findings<'_>) {
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

fn costs(at: &str, check: &Check, limit: &Limit, findings: &mut Findings<'_>) {
    let most = limit.most();
    let mut too_much = |severity, field: String, cost: u64| {
        if cost > most {
            findings.add(
                severity,
                field,
                format!("a cost of {cost} is more than limit `{}` ever holds ({most}): such a request is never admitted", limit.name),
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

/// Whether all that one check counts, the other counts too: its key has no part that the one's has not.
fn is_as_wide(wide: &Check, narrow: &Check) -> bool {
    let constant = |check: &Check| check.key.iter().all(|part| part.constant.is_some());
    let parts = wide.key.iter().all(|part| narrow.key.contains(part));
    // A part that is missing must not make the wide one be skipped where the narrow one is asked.
    let missing = wide.when_missing == narrow.when_missing
        || !matches!(narrow.when_missing, Some(WhenMissing::Use(_)));
    constant(wide) || (parts && missing)
}

/// Whether one check's limit always denies before the other's would.
fn is_tighter(policy: &Policy, tight: &Check, loose: &Check) -> bool {
    let (Named::Name(tight_name), Named::Name(loose_name)) = (&tight.limit, &loose.limit) else {
        return false;
    };
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
            .map(|spec| most_in(spec, window.window_us) / u128::from(*tight_cost).max(1));
        let requests = requests.min().unwrap_or(u128::MAX);
        // A bucket of tokens holds less than its quota unless it is full: then only its burst is sure.
        let room = match window.algorithm {
            Algorithm::TokenBucket { .. } => return false,
            _ => u128::from(window.limit),
        };
        requests.saturating_mul(u128::from(*loose_cost)) <= room
    })
}

/// The most units that a window can admit within some time, wherever it begins.
fn most_in(spec: &BucketSpec, time_us: u64) -> u128 {
    let windows = u128::from(time_us.div_ceil(spec.window_us.max(1)));
    let limit = u128::from(spec.limit);
    match spec.algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => windows * limit,
        // Aligned windows: one more can begin within the time.
        Algorithm::FixedWindow => (windows + 1) * limit,
        Algorithm::TokenBucket { burst } => u128::from(burst) + windows * limit,
    }
}
