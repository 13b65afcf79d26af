//! The rule sets of a policy, which plugins name.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use sluicegate_engine::{BucketSpec, MAX_SLOTS};
use sluicegate_protocol::Whom;
use sluicegate_rules::config::from_value;
use sluicegate_rules::config::schema::{Configuration, Match, RuleSetFile};
use sluicegate_rules::config::walk::{checks, limit_names};

use super::documents::FoundPolicy;
use super::envoy_yaml::{Plugin, Source};
use super::findings::{Finding, Findings, Severity};
use super::limits::idle_window;
use super::rules::lint_rules;
use crate::policy::{Expanded, KeyForms, Made, Policy, StoreAddress, WhenStoreIsDown, window_name};
use crate::yaml::ValueWithLines;

/// A fleet may have as many sidecars.
const FLEET: u64 = 20;

/// A policy as it is written, with its lines.
#[derive(Debug)]
pub struct WrittenPolicy<'a> {
    /// Where it was found.
    pub source: &'a Source,
    /// What the sidecar makes of it, or its mistakes.
    pub policy: Result<Policy, Vec<String>>,
    /// Its long form; empty if that has mistakes.
    pub expanded: Expanded,
    /// How many lines of the file come before it.
    before: usize,
    /// Its rule sets, by name; none if it is not even YAML.
    pub(super) sets: BTreeMap<String, ValueWithLines>,
}

impl<'a> WrittenPolicy<'a> {
    /// Reads a policy.
    pub fn read(found: &'a FoundPolicy) -> Self {
        let expanded = Expanded::read(&found.text, &mut found.files.clone());
        let policy = expanded.as_ref().map_err(Clone::clone);
        let policy = policy.and_then(Expanded::policy);
        let expanded = expanded.unwrap_or_default();
        Self {
            source: &found.source,
            policy,
            sets: expanded.section("rules"),
            before: found.line,
            expanded,
        }
    }

    /// What it has in it that is no mistake, but probably not as intended.
    pub fn lint(&self) -> Vec<Finding> {
        let found = self.sets.keys().map(|name| self.lint_set(name, None));
        let found = found.flatten().flatten();
        let Ok(policy) = &self.policy else {
            return found.collect();
        };
        found
            .chain(self.lint_overrides(policy))
            .chain(self.lint_windows(policy))
            .chain(self.lint_consumers(policy))
            .chain(self.lint_slots(policy))
            .collect()
    }

    /// Overrides of keys that no rule makes.
    fn lint_overrides(&self, policy: &Policy) -> impl Iterator<Item = Finding> {
        let limits = LazyCell::new(|| self.expanded.section("limits"));
        let forms = LazyCell::new(|| KeyForms::new(&policy.rules));
        policy.limits().filter_map(move |limit| {
            let is_made = |whom: &Whom| match whom {
                Whom::Key(key) => {
                    let is_known = policy.lacks(&limit.name, whom).is_none();
                    is_known && forms.make(&limit.name, key) == Made::Yes
                }
                _ => true,
            };
            let wrong = limit.overrides.keys().filter(|whom| !is_made(whom)).count();
            let message = format!(
                "limit `{}`: {wrong} of its `overrides` are for keys that no rule makes: `sluicegate explain` prints the key of a request",
                limit.name
            );
            (wrong > 0).then(|| self.warning(limits.get(&limit.name), "overrides", message))
        })
    }

    /// Windows that never decide.
    fn lint_windows(&self, policy: &Policy) -> impl Iterator<Item = Finding> {
        let limits = LazyCell::new(|| self.expanded.section("limits"));
        policy.limits().filter_map(move |limit| {
            // What a settle charges goes beyond a window, and decides in a longer one.
            let (idle, other) = idle_window(limit).filter(|_| !limit.is_settled)?;
            let told = |one: &BucketSpec| format!("`{}/{}`", one.quota, window_name(one));
            let (name, idle, other) = (&limit.name, told(idle), told(other));
            let message = format!("limit `{name}`: {idle} never decides, as {other} admits no more: remove one or change it");
            Some(self.warning(limits.get(name), "windows", message))
        })
    }

    /// Slots of which some sidecars have a share that is too small for a request.
    fn lint_slots(&self, policy: &Policy) -> impl Iterator<Item = Finding> {
        let limits = LazyCell::new(|| self.expanded.section("limits"));
        let costs = LazyCell::new(|| self.slots_of_requests(policy));
        policy.limits().filter_map(move |limit| {
            limit.expire_us()?;
            let (name, slots) = (&limit.name, limit.most());
            let is_shared = policy.store != StoreAddress::Memory
                && limit.when_store_is_down == WhenStoreIsDown::Share;
            // What exceeds the whole limit is a finding of its own.
            let cost = costs.get(name).map_or(1, |cost| *cost.min(&slots));
            let fleet = slots.checked_div(cost).unwrap_or(0);
            let message = format!(
                "limit `{name}`: while the store is down each sidecar has its share of {slots} slots, and with more than {fleet} sidecars some have fewer than a request takes ({cost}) and refuse it with 503: write `when_store_is_down: allow` or `deny`, unless the fleet is smaller"
            );
            (is_shared && fleet < FLEET).then(|| self.warning(limits.get(name), "at_once", message))
        })
    }

    /// The most slots that a request of some rule takes, by the limits that rules name.
    fn slots_of_requests(&self, policy: &Policy) -> BTreeMap<String, u64> {
        let mut costs = BTreeMap::new();
        let sets = self.sets.values();
        let files = sets.filter_map(|lines| from_value::<RuleSetFile>(&lines.value).ok());
        for file in files {
            for (at, _, check) in checks(&file.rules) {
                let cost = check.cost.most().min(MAX_SLOTS);
                let names = limit_names(&at, check).into_iter();
                for limit in names.flat_map(|(_, name)| policy.limits_of(name)) {
                    let most = costs.entry(limit.to_owned()).or_insert(1);
                    *most = cost.max(*most);
                }
            }
        }
        costs
    }

    /// Consumers with limits of their own that nobody has a key of.
    fn lint_consumers(&self, policy: &Policy) -> impl Iterator<Item = Finding> {
        let entries = LazyCell::new(|| self.expanded.section("consumers"));
        policy.consumers_without_keys().map(move |(name, consumer)| {
            let message = format!(
                "consumers `{name}`: `{consumer}` has a limit and no key: add one with `sluicegate consumers add {consumer}`, unless the name of a tier or consumer is misspelt"
            );
            self.warning(entries.get(name), "limits", message)
        })
    }

    /// A warning at a field of an entry.
    fn warning(&self, entry: Option<&ValueWithLines>, field: &str, message: String) -> Finding {
        let line = entry.map_or(1, |entry| entry.line(field));
        Finding {
            file: self.source.file.clone(),
            line: self.before + line,
            severity: Severity::Warning,
            message,
        }
    }

    /// Lints a set, with the plugin that runs it, if that is known; `None` if there is no such set.
    pub fn lint_set(
        &self,
        name: &str,
        around: Option<(&Plugin, &Configuration)>,
    ) -> Option<Vec<Finding>> {
        let lines = self.sets.get(name)?;
        let mut findings = Findings {
            source: self.source,
            lines,
            prefix: format!("rules.{name}."),
            found: Vec::new(),
        };
        // What cannot be read is among the policy's mistakes.
        if let Ok(file) = from_value::<RuleSetFile>(&lines.value) {
            for (index, rule) in file.rules.iter().enumerate() {
                secrets(index, &rule.matcher, &mut findings);
            }
            lint_rules(
                &file.rules,
                around,
                self.policy.as_ref().ok(),
                &mut findings,
            );
        }
        let mut found = findings.sorted();
        for finding in &mut found {
            finding.line += self.before;
            finding.message = self.expanded.named(&finding.message);
        }
        Some(found)
    }
}

/// What the names of secrets have in them.
const SECRET: [&str; 8] = [
    "auth", "cookie", "cred", "key", "pass", "secret", "session", "token",
];

/// Conditions that compare what may be a secret: filters are told rules without a token.
fn secrets(rule: usize, one: &Match, findings: &mut Findings<'_>) {
    let compared = one.headers.iter().chain(&one.query);
    let mut compared = compared.filter(|condition| condition.equals.is_some());
    if let Some(condition) = compared.find(|condition| {
        let name = condition.name.to_ascii_lowercase();
        SECRET.iter().any(|part| name.contains(part))
    }) {
        findings.warn(
            format!("rules[{rule}].match"),
            format!(
                "`{}` is compared with a text that whoever reaches the decision port can read",
                condition.name
            ),
            "a rule must hold no secret: have Envoy check it, and match what Envoy writes then",
        );
    }
    let inside = one.all.iter().chain(&one.any).chain(one.not.as_deref());
    inside.for_each(|inner| secrets(rule, inner, findings));
}
