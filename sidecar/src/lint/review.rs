//! All that can be found.

use sluicegate_rules::config::check;

use super::document::Plugin;
use super::findings::{Finding, Findings, Severity};
use super::{envoy, keys, limits, matching};
use crate::policy::Policy;

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
