//! Who changed an override: a line of the log under the target `audit`, and an event of the live page. The key is not
//! shown, but its subject, as `sluicegate top` shows it.

use std::fmt::Write;

use sluicegate_protocol::OverrideTerms;
use tracing::info;

use super::events::EventLog;
use super::subject::Subject;
use crate::clock;

/// An override was set.
pub fn override_set(events: &EventLog, limit: &str, key: &str, terms: &OverrideTerms) {
    let subject = Subject::of(key);
    let until = terms.until.as_deref().unwrap_or("removed");
    let reason = terms.reason.as_deref().unwrap_or_default();
    let by = terms.by.as_deref().unwrap_or_default();
    info!(target: "audit", limit, %subject, allowance = %terms, until, reason, by, "override set");
    let mut detail = format!("{limit} of {subject}: {terms}, until {until}");
    add(&mut detail, terms.by.as_deref(), terms.reason.as_deref());
    events.override_set(clock::unix_ms(), detail);
}

/// An override was removed.
pub fn override_removed(
    events: &EventLog,
    limit: &str,
    key: &str,
    by: Option<&str>,
    reason: Option<&str>,
) {
    let subject = Subject::of(key);
    info!(
        target: "audit",
        limit,
        %subject,
        reason = reason.unwrap_or_default(),
        by = by.unwrap_or_default(),
        "override removed"
    );
    let mut detail = format!("{limit} of {subject}");
    add(&mut detail, by, reason);
    events.override_removed(clock::unix_ms(), detail);
}

fn add(detail: &mut String, by: Option<&str>, reason: Option<&str>) {
    for (word, text) in [("by", by), ("reason:", reason)] {
        if let Some(text) = text {
            // Writing to a string does not fail.
            let _ = write!(detail, ", {word} {text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_subject_and_not_the_key() {
        let events = EventLog::default();
        let terms = r#"{"windows":[{"quota":500,"per":"1m"},{"quota":9,"per":"1s","burst":3}],"reason":"INC-7","by":"ann"}"#;
        let terms = serde_json::from_str(terms).unwrap();
        override_set(&events, "per-key", "worker-7", &terms);
        override_removed(&events, "per-key", "worker-7", Some("bob"), None);
        let details: Vec<_> = events.newest().into_iter().map(|e| e.detail).collect();
        assert_eq!(
            details,
            [
                "per-key of 8aca0dd300d2, by bob",
                "per-key of 8aca0dd300d2: quota 500/1m 9/1s burst 3, until removed, by ann, reason: INC-7",
            ]
        );
    }
}
