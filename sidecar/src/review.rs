//! What can be seen to be wrong with a plugin configuration and a policy before they meet a request.
//!
//! | file | for |
//! |---|---|
//! | `review/limits.rs` | limits that are unknown, too small for a cost, or never reached because another is tighter |
//! | `review/matching.rs` | which rules cover which others, and those that are never reached |
//! | `review/keys.rs` | keys that a client can choose or leave out |
//! | `review/envoy.rs` | what stands around the filter in Envoy's file |

mod envoy;
mod keys;
mod limits;
mod matching;

use std::fmt;

use sluicegate_rules::config::{check, written};

use crate::document::{Lined, Plugin};
use crate::policy::Policy;

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

/// Finds what is wrong with a configuration, alone and, where a policy is given, together with it.
pub fn review(plugin: &Plugin, policy: Option<&Policy>) -> Vec<Finding> {
    let lined = &plugin.configuration;
    let text = lined.value.to_string();
    let read = sluicegate_rules::config::read(text.as_bytes());
    let written = match read.and_then(|written| check(&written).map(|_| written)) {
        Ok(written) => written,
        Err(error) => {
            return vec![Finding {
                line: lined.line(&error.field),
                severity: Severity::Error,
                field: error.field,
                message: error.why,
                remedy: "Envoy refuses this configuration until it is mended".to_owned(),
            }];
        }
    };
    let mut findings = Findings {
        lined,
        found: Vec::new(),
    };
    envoy::review(plugin, &written, &mut findings);
    matching::review(&written, &mut findings);
    keys::review(plugin, &written, &mut findings);
    if let Some(policy) = policy {
        limits::review(&written, policy, &mut findings);
    }
    findings.found.sort_by_key(|finding| finding.line);
    findings.found
}

/// What has been found so far.
struct Findings<'a> {
    lined: &'a Lined,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, severity: Severity, field: String, message: String, remedy: &str) {
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
fn checks(
    written: &written::Configuration,
) -> impl Iterator<Item = (usize, String, &written::Rule, &written::Check)> {
    written.rules.iter().enumerate().flat_map(|(r, rule)| {
        let checks = rule.checks.iter().enumerate();
        checks.map(move |(c, check)| (r, format!("rules[{r}].checks[{c}]"), rule, check))
    })
}
