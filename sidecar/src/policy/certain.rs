//! What fails for every request of a rule.

use sluicegate_protocol::MAX_CHECKS;
use sluicegate_rules::config::ConfigError;
use sluicegate_rules::config::schema::{Check, Cost, Rule, WhenMissing};
use sluicegate_rules::config::walk::{can_be_absent, checks, limit_names};

use super::covering::{covers, excludes};
use super::limits::Limit;

/// The first rule whose requests all have more checks than a decision may have.
pub fn too_many_checks(rules: &[Rule]) -> Option<ConfigError> {
    let enforced = rules.iter().enumerate().filter(|(_, rule)| !rule.shadow);
    enforced.clone().find_map(|(_, rule)| {
        let mut count = 0;
        for (index, other) in enforced.clone() {
            if covers(&other.matcher, &rule.matcher) {
                count += other.checks.iter().filter(|check| !is_optional(check)).count();
            }
            if count > MAX_CHECKS {
                let why = format!(
                    "every request that matches rule `{}` has more than {MAX_CHECKS} checks, the most of a decision, and is answered with \
                     503: remove limits, or let them match fewer requests",
                    rule.name
                );
                let field = format!("rules[{index}].match");
                return Some(ConfigError { field, why });
            }
            if other.stop && !excludes(&other.matcher, &rule.matcher) {
                break;
            }
        }
        None
    })
}

/// Checks whose cost is always more than their limits ever hold, as far as these are known.
pub fn costs_over_limits<'l>(
    rules: &[Rule],
    limit: impl Fn(&str) -> Option<&'l Limit>,
) -> Vec<ConfigError> {
    let enforced = checks(rules).filter(|(_, rule, _)| !rule.shadow);
    let found = enforced.filter_map(|(at, _, check)| {
        let names = limit_names(&at, check).into_iter();
        let limits: Option<Vec<_>> = names.map(|(_, name)| limit(name)).collect();
        let limits = limits?;
        let most: Option<Vec<_>> = limits.iter().map(|limit| limit.most_of_any()).collect();
        let (cost, most) = (least(&check.cost), most?.into_iter().max()?);
        let of_check = limits.iter().map(|limit| limit.most_of_check()).max()?;
        let remedy = match cost > of_check {
            true => format!("lower the cost: one request takes at most {of_check} slots"),
            false => "lower the cost or raise the limit".to_owned(),
        };
        let why = format!("a cost of {cost} exceeds what the limit can ever hold ({most}): such a request is never admitted; {remedy}");
        let field = format!("{at}.cost");
        (cost > most).then_some(ConfigError { field, why })
    });
    found.collect()
}

/// Whether a request can go without it.
fn is_optional(check: &Check) -> bool {
    let skips = matches!(check.when_missing, None | Some(WhenMissing::Skip));
    skips && check.key.iter().any(can_be_absent)
}

/// The least that a request can cost.
fn least(cost: &Cost) -> u64 {
    match cost {
        Cost::Constant(cost) => *cost,
        Cost::Varying(varying) if varying.header.is_some() || varying.settle.is_some() => 1,
        Cost::Varying(varying) => {
            let costs = varying.table.iter().flatten().map(|entry| entry.cost);
            costs.fold(varying.default, u64::min)
        }
    }
}
