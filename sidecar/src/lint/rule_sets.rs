//! The rule sets of a policy, which plugins name.

use std::collections::BTreeMap;
use std::path::Path;

use sluicegate_protocol::Whom;
use sluicegate_rules::config::from_value;
use sluicegate_rules::config::schema::{Configuration, RuleSetFile};

use super::documents::FoundPolicy;
use super::envoy_yaml::{Plugin, Source};
use super::findings::{Finding, Findings, Severity};
use super::rules::lint_rules;
use crate::policy::{Expanded, Files, Limit, Made, Policy, written};
use crate::yaml::ValueWithLines;

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
        let mut files = match found.field.as_str() {
            "" => Files::beside(Path::new(&found.source.file)),
            _ => Files::given(
                found
                    .beside
                    .iter()
                    .map(|(name, text)| (name.as_str(), text.as_str())),
            ),
        };
        let expanded = Expanded::read(&found.text, &mut files);
        let policy = expanded.as_ref().map_err(Clone::clone);
        let policy = policy.and_then(Expanded::policy);
        let expanded = expanded.unwrap_or_default();
        Self {
            source: &found.source,
            policy,
            sets: written(&expanded.text, "rules"),
            before: found.line,
            expanded,
        }
    }

    /// What its rules have in them that is no mistake, but probably not as intended.
    pub fn lint(&self) -> Vec<Finding> {
        let found = self.sets.keys().map(|name| self.lint_set(name, None));
        let overrides = self.policy.iter().flat_map(Policy::limits);
        let overrides = overrides.flat_map(|limit| self.lint_overrides(limit));
        let consumers = self.policy.iter().flat_map(Policy::consumers_without_keys);
        let consumers = consumers.map(|(name, consumer)| {
            let message = format!("consumers `{name}`: `{consumer}` has a limit and no key: add one with `sluicegate consumers add {consumer}`");
            self.warning("consumers", name, "limits", message)
        });
        found
            .flatten()
            .flatten()
            .chain(overrides)
            .chain(consumers)
            .collect()
    }

    /// A warning at a field of an entry.
    fn warning(&self, section: &str, name: &str, field: &str, message: String) -> Finding {
        let entries = written(&self.expanded.text, section);
        let line = entries.get(name).map_or(1, |entry| entry.line(field));
        Finding {
            file: self.source.file.clone(),
            line: self.before + self.expanded.line(line),
            severity: Severity::Warning,
            message,
        }
    }

    /// Overrides of keys that no rule makes.
    fn lint_overrides(&self, limit: &Limit) -> Vec<Finding> {
        let rules = self.policy.as_ref().map(|policy| &policy.rules);
        let is_made = |whom: &Whom| match (whom, &rules) {
            (Whom::Key(key), Ok(rules)) => rules.make(&limit.name, key) == Made::Yes,
            _ => true,
        };
        let wrong = limit.overrides.keys().filter(|whom| !is_made(whom)).count();
        let message = format!(
            "limit `{}`: {wrong} of its `overrides` are for keys that no rule makes: `sluicegate explain` prints the key of a request",
            limit.name
        );
        let finding =
            (wrong > 0).then(|| self.warning("limits", &limit.name, "overrides", message));
        finding.into_iter().collect()
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
            lint_rules(
                &file.rules,
                around,
                self.policy.as_ref().ok(),
                &mut findings,
            );
        }
        let mut found = findings.sorted();
        for finding in &mut found {
            finding.line = self.before + self.expanded.line(finding.line);
            finding.message = self.expanded.named(&finding.message);
        }
        Some(found)
    }
}
