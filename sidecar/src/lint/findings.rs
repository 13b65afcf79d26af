//! Findings: what is wrong, where, and how to fix it.

use std::fmt;

use serde::Serialize;
use sluicegate_rules::config::schema;

use super::yaml::ValueWithLines;

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It works, but probably not as intended.
    Warning,
    /// It does not work, or a client can defeat it.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// A mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line of the file.
    pub line: usize,
    /// How serious it is.
    pub severity: Severity,
    /// The field, by its path in the configuration.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// How to fix it.
    pub remedy: String,
}

/// The findings so far.
pub struct Findings<'a> {
    /// The configuration, with its lines.
    pub lined: &'a ValueWithLines,
    /// In the order of discovery.
    pub found: Vec<Finding>,
}

impl Findings<'_> {
    /// Adds a finding at the line of its field.
    pub fn add(
        &mut self,
        severity: Severity,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: &str,
    ) {
        let field = field.into();
        self.found.push(Finding {
            line: self.lined.line(&field),
            severity,
            field,
            message: message.into(),
            remedy: remedy.to_owned(),
        });
    }

    pub fn error(&mut self, field: impl Into<String>, message: impl Into<String>, remedy: &str) {
        self.add(Severity::Error, field, message, remedy);
    }

    pub fn warn(&mut self, field: impl Into<String>, message: impl Into<String>, remedy: &str) {
        self.add(Severity::Warning, field, message, remedy);
    }
}

/// Each check of each rule, with the check's path.
pub fn checks(
    configuration: &schema::Configuration,
) -> impl Iterator<Item = (String, &schema::Rule, &schema::Check)> {
    configuration
        .rules
        .iter()
        .enumerate()
        .flat_map(|(r, rule)| {
            let checks = rule.checks.iter().enumerate();
            checks.map(move |(c, check)| (format!("rules[{r}].checks[{c}]"), rule, check))
        })
}

/// Every component of a key and of a choice of limit, with its path.
pub fn components(
    configuration: &schema::Configuration,
) -> impl Iterator<Item = (String, &schema::KeyComponent)> {
    checks(configuration).flat_map(|(at, _, check)| {
        let key = check.key.iter().enumerate();
        let mut components: Vec<_> = key
            .map(|(index, component)| (format!("{at}.key[{index}]"), component))
            .collect();
        if let schema::Limit::Tiers(tiers) = &check.limit {
            components.push((format!("{at}.limit.by"), &tiers.by));
        }
        components
    })
}
