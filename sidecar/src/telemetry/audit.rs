//! Who changed an override: a line of the log under the target `audit`, and an event of the live page. The key is not
//! shown, but the consumer or the subject, as `sluicegate top` shows it.

use sluicegate_protocol::{Author, OverrideTerms, Whom};
use tracing::info;

use super::events::{EventKind, EventLog};
use super::subject::Subject;
use crate::clock;
use crate::policy::consumer_of;

/// An override was set.
pub fn override_set(
    events: &EventLog,
    limit: &str,
    whom: &Whom,
    terms: &OverrideTerms,
    at_once: bool,
) {
    let allowance = terms.allowance(at_once);
    let until = terms.until.as_deref().unwrap_or("removed");
    let (subject, [by, reason]) = (shown(whom), [&terms.by, &terms.reason].map(given));
    info!(target: "audit", limit, subject, allowance, until, reason, by, "override set");
    let detail = format!("{limit} of {subject}: {allowance}, until {until}");
    add(events, EventKind::OverrideSet, detail, by, reason);
}

/// An override was removed.
pub fn override_removed(events: &EventLog, limit: &str, whom: &Whom, author: &Author) {
    let (subject, [by, reason]) = (shown(whom), [&author.by, &author.reason].map(given));
    info!(target: "audit", limit, subject, reason, by, "override removed");
    let detail = format!("{limit} of {subject}");
    add(events, EventKind::OverrideRemoved, detail, by, reason);
}

fn given(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

fn add(events: &EventLog, kind: EventKind, mut detail: String, by: &str, reason: &str) {
    for (before, given) in [(", by ", by), (", reason: ", reason)] {
        if !given.is_empty() {
            detail = detail + before + given;
        }
    }
    events.add(clock::unix_ms(), kind, detail);
}

fn shown(whom: &Whom) -> String {
    if let Whom::Key(key) = whom
        && let Some(consumer) = consumer_of(key)
    {
        return format!("consumer {consumer}");
    }
    Subject::of_whom(whom).unwrap_or_else(|| "all keys".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_subject_and_not_the_key() {
        let events = EventLog::default();
        let terms = r#"{"windows":[{"quota":500,"per":"1m"},{"quota":9,"per":"1s","burst":3}],"reason":"INC-7","by":"ann"}"#;
        let terms = serde_json::from_str(terms).unwrap();
        let whom = Whom::Key("worker-7".to_owned());
        override_set(&events, "per-key", &whom, &terms, false);
        let by_bob = Author {
            by: Some("bob".to_owned()),
            reason: None,
        };
        override_removed(&events, "per-key", &whom, &by_bob);
        let details: Vec<_> = events.newest().into_iter().map(|e| e.detail).collect();
        assert_eq!(
            details,
            [
                "per-key of 8aca0dd300d2436b96f9, by bob",
                "per-key of 8aca0dd300d2436b96f9: quota 500/1m 9/1s burst 3, until removed, by ann, reason: INC-7",
            ]
        );
    }
}
