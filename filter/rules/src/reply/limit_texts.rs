//! The constant text of replies about a rule's limits. A denied client may send many requests, so this text is built
//! once, when the configuration is read.

use std::cell::RefCell;
use std::sync::Arc;

use sluicegate_protocol::{CalendarUnit, LimitStatus};

use super::denial_text::{write_denial, write_state, write_window};
use super::details::details;
use super::header_fields::number;
use super::header_style::policy;
use super::problem::Problem;
use crate::key::subject;
use crate::settle::Slots;

/// Stands for the text of a denial. No name contains it.
const DETAIL: &str = "*";

/// A window as a denial names it: quota, length in milliseconds, and the calendar's unit if it has one.
type Window = (u64, u64, Option<CalendarUnit>);

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
    /// How its slots live, if it has any.
    pub slots: Option<Slots>,
    /// The problem detail of a denial: the bytes before and after its human-readable text.
    problem: (String, String),
    /// The window that denied last, and its problem detail up to the numbers of a denial.
    window: RefCell<(Window, String)>,
    /// The key that was denied last, and [`LimitTexts::subject`] of it.
    last: RefCell<(String, Arc<str>)>,
}

impl LimitTexts {
    pub fn new(rule: &str, limit: &str, windows: Vec<(u64, u64)>, slots: Option<Slots>) -> Self {
        let name = format!("\"{limit}/");
        let mut policies = String::new();
        for window in &windows {
            if !policies.is_empty() {
                policies.push_str(", ");
            }
            policy(&mut policies, &name, *window, slots.is_some());
        }
        let problem = Problem::new(429, DETAIL, Some(limit)).to_json();
        let problem = problem.trim_end_matches('}');
        let (before, after) = problem.split_once(DETAIL).unwrap_or_default();
        Self {
            name: limit.to_owned(),
            details: details("denied", &[("rule", Some(rule)), ("limit", Some(limit))]).into(),
            policy: name,
            windows,
            policies,
            slots,
            problem: (before.to_owned(), after.to_owned()),
            window: RefCell::default(),
            last: RefCell::default(),
        }
    }

    /// The subject whose quota is used up. Hashing it costs as much as half of the rest of a reply, and a client that is denied
    /// usually asks again, so the last one is remembered.
    pub fn subject(&self, key: &str) -> Arc<str> {
        let mut last = self.last.borrow_mut();
        if last.0 != key {
            let details = details("denied", &[("subject", Some(&subject(key)))]);
            *last = (key.to_owned(), details.into());
        }
        Arc::clone(&last.1)
    }

    /// The problem detail of a denial of `cost` units; for gRPC only its human-readable text.
    pub fn problem(&self, limit_status: &LimitStatus<'_>, cost: u64, grpc: bool) -> String {
        let mut text = String::with_capacity(384);
        if grpc {
            write_denial(&mut text, &self.name, limit_status, cost);
            return text;
        }
        if limit_status.until_changed || limit_status.at_once {
            text.push_str(&self.problem.0);
            write_denial(&mut text, &self.name, limit_status, cost);
            text.push_str(&self.problem.1);
        } else {
            let window = (
                limit_status.quota,
                limit_status.window_ms,
                limit_status.calendar,
            );
            let mut last = self.window.borrow_mut();
            if last.0 != window || last.1.is_empty() {
                last.0 = window;
                last.1.clone_from(&self.problem.0);
                write_window(&mut last.1, &self.name, limit_status);
            }
            text.push_str(&last.1);
            write_state(&mut text, limit_status, cost);
            text.push_str(&self.problem.1);
        }
        if limit_status.at_once {
            text.push_str(",\"kind\":\"concurrent-requests\"");
        }
        if !limit_status.until_changed {
            text.push_str(",\"retry_after_ms\":");
            number(&mut text, limit_status.retry_after_ms);
        }
        text.push('}');
        text
    }
}
