//! Findings: what is wrong, where, and how to fix it.

use std::fmt;

use serde::Serialize;

use super::envoy_yaml::Source;
use crate::yaml::ValueWithLines;

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
#[derive(Debug, PartialEq, Eq, Serialize)]
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

/// The findings in a plugin configuration or a rule set so far.
pub struct Findings<'a> {
    /// Where it was found.
    pub source: &'a Source,
    /// The lines of its fields.
    pub lines: &'a ValueWithLines,
    /// What comes before the path of a field, such as `rules.gateway.`.
    pub prefix: String,
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
        let (object, prefix) = (self.source.object(), &self.prefix);
        let at = match (prefix.as_str(), field) {
            ("", "") => String::new(),
            (prefix, "") => format!("`{}`: ", prefix.trim_end_matches('.')),
            _ => format!("`{prefix}{field}`: "),
        };
        self.found.push(Finding {
            file: self.source.file.clone(),
            line: self.lines.line(field),
            severity,
            message: format!("{object}{at}{message}; {remedy}"),
        });
    }

    pub fn error(&mut self, field: impl AsRef<str>, message: impl fmt::Display, remedy: &str) {
        self.add(Severity::Error, field, message, remedy);
    }

    pub fn warn(&mut self, field: impl AsRef<str>, message: impl fmt::Display, remedy: &str) {
        self.add(Severity::Warning, field, message, remedy);
    }

    /// In the order of their lines.
    pub fn sorted(mut self) -> Vec<Finding> {
        self.found.sort_by_key(|finding| finding.line);
        self.found
    }
}
