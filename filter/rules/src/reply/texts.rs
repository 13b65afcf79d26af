//! The constant text of replies about a rule's limits. A denied client may send many requests, so this text is built
//! once, when the configuration is read.

use std::sync::{Arc, Mutex, PoisonError};

use sluicegate_protocol::LimitStatus;

use super::details::details;
use super::text::number;
use crate::key::subject;

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
    /// The problem detail of a denial, up to its first number.
    body: String,
    /// Offset in `body` of the human-readable text, which is all that gRPC clients get.
    detail_at: usize,
    /// The text between the last two numbers of the problem detail.
    body_end: String,
    /// The key that was denied last, and [`LimitTexts::subject`] of it.
    last: Mutex<(String, Arc<str>)>,
}

impl LimitTexts {
    pub fn new(rule: &str, limit: &str) -> Self {
        let before = r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":""#;
        Self {
            name: limit.to_owned(),
            details: details("denied", &[("rule", Some(rule)), ("limit", Some(limit))]).into(),
            policy: format!("\"{limit}/"),
            body: format!("{before}limit `{limit}` allows "),
            detail_at: before.len(),
            body_end: format!(r#" ms","limit":"{limit}","retry_after_ms":"#),
            last: Mutex::default(),
        }
    }

    /// Whose quota is used up. Hashing costs as much as half of the rest, and who is denied usually asks again.
    pub fn subject(&self, key: &str) -> Arc<str> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != key {
            let details = details("denied", &[("subject", Some(&subject(key)))]);
            *last = (key.to_owned(), details.into());
        }
        Arc::clone(&last.1)
    }

    /// The problem detail of a denial; for gRPC only its human-readable text.
    pub fn problem(&self, limit_status: &LimitStatus<'_>, grpc: bool) -> String {
        let start = if grpc { self.detail_at } else { 0 };
        let mut text = String::with_capacity(self.body.len() + self.body_end.len() + 160);
        text.push_str(self.body.get(start..).unwrap_or_default());
        for (value, after) in [
            (limit_status.quota, " per "),
            (limit_status.window_ms, " ms and has "),
            (
                limit_status.remaining,
                " left; the same request is admitted in ",
            ),
        ] {
            number(&mut text, value);
            text.push_str(after);
        }
        number(&mut text, limit_status.retry_after_ms);
        if grpc {
            text.push_str(" ms");
        } else {
            text.push_str(&self.body_end);
            number(&mut text, limit_status.retry_after_ms);
            text.push('}');
        }
        text
    }
}
