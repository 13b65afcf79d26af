//! The constant text of replies about a rule's limits. A denied client may send many requests, so this text is built
//! once, when the configuration is read.

use std::cell::RefCell;
use std::sync::Arc;

use sluicegate_protocol::LimitStatus;

use super::details::details;
use super::header_fields::number;
use super::header_style::policy;
use super::problem::Problem;
use crate::key::subject;

/// Stands for a number in a text. No name contains it.
const NUMBER: char = '*';

/// The constant text for one limit of one rule. Their names contain nothing that JSON or a structured field would have
/// to escape; a configuration with other names is refused.
#[derive(Debug)]
pub(crate) struct LimitTexts {
    /// The limit's name.
    pub name: String,
    /// Response code details of a denial.
    pub details: Arc<str>,
    /// The policy's name in the `RateLimit` fields, up to the length of its window.
    pub policy: String,
    /// Its windows, if they are known: quota, and length in milliseconds.
    pub windows: Vec<(u64, u64)>,
    /// What `RateLimit-Policy` lists for them: `"per-key/2s";q=5;w=2, "per-key/60s";q=100;w=60`.
    pub policies: String,
    /// The problem detail of a denial: its text before, between and after its numbers.
    problem: Vec<String>,
    /// Likewise its human-readable text, which is all that gRPC clients get.
    detail: Vec<String>,
    /// The key that was denied last, and [`LimitTexts::subject`] of it.
    last: RefCell<(String, Arc<str>)>,
}

impl LimitTexts {
    pub fn new(rule: &str, limit: &str, windows: Vec<(u64, u64)>) -> Self {
        let name = format!("\"{limit}/");
        let mut policies = String::new();
        for window in &windows {
            if !policies.is_empty() {
                policies.push_str(", ");
            }
            policy(&mut policies, &name, *window);
        }
        let detail = format!(
            "limit `{limit}` allows {NUMBER} per {NUMBER} ms and has {NUMBER} left; the same request is admitted in {NUMBER} ms"
        );
        let mut problem = Problem::new(429, &detail, Some(limit));
        problem.retry_after_ms = Some(0);
        let problem = problem.to_json();
        let without_last = problem.strip_suffix("0}").unwrap_or(&problem);
        let split = |text: &str| text.split(NUMBER).map(str::to_owned).collect();
        Self {
            name: limit.to_owned(),
            details: details("denied", &[("rule", Some(rule)), ("limit", Some(limit))]).into(),
            policy: name,
            windows,
            policies,
            problem: split(&format!("{without_last}{NUMBER}}}")),
            detail: split(&detail),
            last: RefCell::default(),
        }
    }

    /// Whose quota is used up. Hashing costs as much as half of the rest, and who is denied usually asks again.
    pub fn subject(&self, key: &str) -> Arc<str> {
        let mut last = self.last.borrow_mut();
        if last.0 != key {
            let details = details("denied", &[("subject", Some(&subject(key)))]);
            *last = (key.to_owned(), details.into());
        }
        Arc::clone(&last.1)
    }

    /// The problem detail of a denial; for gRPC only its human-readable text.
    pub fn problem(&self, limit_status: &LimitStatus<'_>, grpc: bool) -> String {
        let pieces = if grpc { &self.detail } else { &self.problem };
        let numbers = [
            limit_status.quota,
            limit_status.window_ms,
            limit_status.remaining,
            limit_status.retry_after_ms,
            limit_status.retry_after_ms,
        ];
        let mut text = String::with_capacity(384);
        let mut pieces = pieces.iter();
        text.extend(pieces.next().map(String::as_str));
        for (value, after) in numbers.into_iter().zip(pieces) {
            number(&mut text, value);
            text.push_str(after);
        }
        text
    }
}
