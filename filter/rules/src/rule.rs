//! Rules, ready to be matched.

use std::rc::Rc;

use sluicegate_protocol::WithoutStore;

use crate::claims::Claim;
use crate::config::terms::{Reply, WhenMissing, WhenUnavailable};
use crate::cost::Cost;
use crate::key_component::{ComponentSource, KeyComponent};
use crate::matcher::Matcher;
use crate::reply::LimitTexts;
use crate::request_view::ViewOptions;
use crate::settle::SettleRule;
use crate::stats::Counters;

/// Rules that are in force together, compiled. Several sets can be alive at once: each question holds the one that it was
/// evaluated with, by which it is counted and answered too.
#[derive(Debug)]
pub struct RuleSet {
    pub(crate) view_options: ViewOptions,
    pub(crate) rules: Vec<Rule>,
    /// Counts of its requests by their results.
    pub counters: Counters,
}

/// Which requests to limit, and the checks to make for them.
#[derive(Debug)]
pub(crate) struct Rule {
    pub name: String,
    pub matcher: Matcher,
    pub checks: Vec<CheckRule>,
    /// All limits that its checks can select, each once.
    pub limits: Vec<LimitTexts>,
    pub when_unavailable: WhenUnavailable,
    /// In the readings of the path in which it matches, later rules are skipped.
    pub stop: bool,
    /// Evaluated and counted, not enforced.
    pub shadow: bool,
    pub reply: Reply,
}

/// A check to make for each request that matches.
#[derive(Debug)]
pub(crate) struct CheckRule {
    pub limit: LimitName,
    pub key: Vec<KeyComponent>,
    pub cost: Cost,
    /// How it is settled, if the cost is only reserved.
    pub settle: Option<Rc<SettleRule>>,
    /// Where a quota in place of the limit's own comes from.
    pub quota: Option<Claim>,
    pub when_missing: WhenMissing,
    /// Whether the limit counts consumers: then the key ends with the replacement of its component, in case that is missing.
    pub consumers: bool,
}

/// Which limit, by its index in the rule's list.
#[derive(Debug)]
pub(crate) enum LimitName {
    Fixed(usize),
    /// Selected by the value of a key component.
    Tiers {
        by: KeyComponent,
        map: Vec<(String, usize)>,
        default: usize,
    },
}

impl From<WithoutStore> for WhenUnavailable {
    fn from(then: WithoutStore) -> Self {
        match then {
            WithoutStore::Allow => Self::Allow,
            WithoutStore::Deny => Self::Deny,
        }
    }
}

impl RuleSet {
    /// How many rules there are.
    pub const fn count(&self) -> usize {
        self.rules.len()
    }

    /// The components of the key of each check that can select this limit: their names in it, and whether they are hashed.
    #[cfg(feature = "schema")]
    pub fn keys_of(&self, limit: &str) -> Vec<Vec<(&str, bool)>> {
        let selects = |rule: &Rule, name: &LimitName| {
            let is_it =
                |index: &usize| rule.limits.get(*index).is_some_and(|one| one.name == limit);
            match name {
                LimitName::Fixed(index) => is_it(index),
                LimitName::Tiers { map, .. } => map.iter().any(|(_, index)| is_it(index)),
            }
        };
        let checks = self.rules.iter().flat_map(|rule| {
            let checks = rule.checks.iter();
            checks.filter(move |check| selects(rule, &check.limit))
        });
        let keys = checks.map(|check| {
            let components = check.key.iter();
            components.map(|one| (one.name.as_str(), one.hashed))
        });
        keys.map(Iterator::collect).collect()
    }

    /// A rule's name.
    pub fn rule_name(&self, rule: usize) -> &str {
        self.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// The name of a limit in a rule's list.
    pub fn limit_name(&self, rule: usize, limit: usize) -> &str {
        let rule = self.rules.get(rule);
        rule.and_then(|rule| rule.limits.get(limit))
            .map_or("", |limit| &limit.name)
    }
}

impl Rule {
    /// Adds the names of the query parameters that the rule reads, and the methods that it lists.
    pub fn names(&self, parameters: &mut Vec<String>, methods: &mut Vec<String>) {
        self.matcher.visit(&mut |matcher| match matcher {
            Matcher::Query(name, _) => parameters.push(name.clone()),
            Matcher::Methods(listed) => methods.extend_from_slice(listed),
            _ => {}
        });
        for check in &self.checks {
            let by = match &check.limit {
                LimitName::Tiers { by, .. } => Some(by),
                LimitName::Fixed(_) => None,
            };
            for component in check.key.iter().chain(by) {
                if let ComponentSource::Query(name) = &component.source {
                    parameters.push(name.clone());
                }
            }
            if let Cost::Table { entries, .. } = &check.cost {
                methods.extend(entries.iter().flat_map(|entry| entry.methods.clone()));
            }
        }
    }
}
