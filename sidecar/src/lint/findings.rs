//! Findings: what is wrong, where, and how to fix it.

use std::fmt;

use serde::Serialize;
use sluicegate_rules::config::schema;

use super::envoy_yaml::Plugin;

/// How serious it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It works, but probably not as intended.
    Warning,
    /// It does not work, or a client can defeat it.
    Error,
}

/// A mistake.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// Its line.
    pub line: usize,
    /// How serious it is.
    pub severity: Severity,
    /// The object, the field, what is wrong and how to fix it.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = format!("{:?}", self.severity).to_lowercase();
        let (file, line, message) = (&self.file, self.line, &self.message);
        write!(f, "{file}:{line}: {severity}: {message}")
    }
}

/// The findings so far.
pub struct Findings<'a> {
    /// The plugin that they are about.
    pub plugin: &'a Plugin,
    /// In the order of discovery.
    pub found: Vec<Finding>,
}

impl Findings<'_> {
    /// Adds a finding at the line of its field.
    pub fn add(
        &mut self,
        severity: Severity,
        field: impl AsRef<str>,
        message: impl fmt::Display,
        remedy: &str,
    ) {
        let field = field.as_ref();
        let source = &self.plugin.source;
        self.found.push(Finding {
            file: source.file.clone(),
            line: self.plugin.configuration.line(field),
            severity,
            message: format!("{}`{field}`: {message}; {remedy}", source.object()),
        });
    }

    pub fn error(&mut self, field: impl AsRef<str>, message: impl fmt::Display, remedy: &str) {
        self.add(Severity::Error, field, message, remedy);
    }

    pub fn warn(&mut self, field: impl AsRef<str>, message: impl fmt::Display, remedy: &str) {
        self.add(Severity::Warning, field, message, remedy);
    }
}

/// Each check of each rule, with the check's path.
pub fn checks(
    configuration: &schema::Configuration,
) -> impl Iterator<Item = (String, &schema::Rule, &schema::Check)> {
    let rules = configuration.rules.iter().enumerate();
    rules.flat_map(|(r, rule)| {
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
