//! What is told of a rule's limits and does not change. A denial is written for every request of whoever is denied, so
//! these parts of it are made once, when the configuration is read.

use std::sync::Arc;

use sluicegate_protocol::Standing;

use super::details::details;
use super::text::number;
use crate::rule::Rule;

/// Of one limit of one rule. Its name holds nothing that JSON or a structured field would have to escape: the
/// configuration is refused otherwise.
#[derive(Debug)]
pub(crate) struct LimitTexts {
    /// Response code details of a denial.
    pub details: Arc<str>,
    /// A policy's name in the `RateLimit` fields, up to the length of its window.
    pub policy: String,
    /// The problem detail of a denial, up to its first number.
    body: String,
    /// Where in `body` the text for people begins, which is all that gRPC clients get.
    detail_at: usize,
    /// What stands between the last two numbers of the problem detail.
    body_end: String,
}

impl LimitTexts {
    pub fn new(rule: &str, limit: &str) -> Self {
        let before = r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":""#;
        Self {
            details: details("denied", &[("rule", Some(rule)), ("limit", Some(limit))]).into(),
            policy: format!("\"{limit}/"),
            body: format!("{before}limit `{limit}` allows "),
            detail_at: before.len(),
            body_end: format!(r#" ms","limit":"{limit}","retry_after_ms":"#),
        }
    }

    /// The problem detail of a denial; for gRPC its text alone.
    pub fn problem(&self, standing: &Standing<'_>, grpc: bool) -> String {
        let start = if grpc { self.detail_at } else { 0 };
        let mut text = String::with_capacity(self.body.len() + self.body_end.len() + 160);
        text.push_str(self.body.get(start..).unwrap_or_default());
        for (value, after) in [
            (standing.quota, " per "),
            (standing.window_ms, " ms and has "),
            (
                standing.remaining,
                " left; the same request is admitted in ",
            ),
        ] {
            number(&mut text, value);
            text.push_str(after);
        }
        number(&mut text, standing.retry_after_ms);
        if grpc {
            text.push_str(" ms");
        } else {
            text.push_str(&self.body_end);
            number(&mut text, standing.retry_after_ms);
            text.push('}');
        }
        text
    }

    /// Those of all limits of all rules, by their indices.
    pub fn of_rules(rules: &[Rule]) -> Vec<Vec<Self>> {
        let of_rule = |rule: &Rule| {
            let limits = rule.limits.iter();
            limits.map(|limit| Self::new(&rule.name, limit)).collect()
        };
        rules.iter().map(of_rule).collect()
    }
}
