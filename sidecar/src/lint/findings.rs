//! What has been found, and how it is told.

use std::fmt;

use sluicegate_rules::config::written;

use super::document::Lined;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, and probably not as it was meant.
    Warning,
    /// It does not work, or a client can make it not work.
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

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Line of the file.
    pub line: usize,
    /// How bad it is.
    pub severity: Severity,
    /// The field, by its path in the configuration.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// What has been found so far.
pub struct Findings<'a> {
    /// The configuration, with its lines.
    pub lined: &'a Lined,
    /// In the order in which they were found.
    pub found: Vec<Finding>,
}

impl Findings<'_> {
    /// Adds one at the line of its field.
    pub fn add(&mut self, severity: Severity, field: String, message: String, remedy: &str) {
        self.found.push(Finding {
            line: self.lined.line(&field),
            severity,
            field,
            message,
            remedy: remedy.to_owned(),
        });
    }
}

/// Each check of each rule, with its path.
pub fn checks(
    written: &written::Configuration,
) -> impl Iterator<Item = (usize, String, &written::Rule, &written::Check)> {
    written.rules.iter().enumerate().flat_map(|(r, rule)| {
        let checks = rule.checks.iter().enumerate();
        checks.map(move |(c, check)| (r, format!("rules[{r}].checks[{c}]"), rule, check))
    })
}
