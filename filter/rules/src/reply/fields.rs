//! The header fields that tell how a limit stands: the IETF's draft, and those that everyone used before.

use sluicegate_protocol::Standing;

use super::text::{Fields, number};

const RATELIMIT: &str = "ratelimit";
const RATELIMIT_POLICY: &str = "ratelimit-policy";
const LEGACY_LIMIT: &str = "x-ratelimit-limit";
const LEGACY_REMAINING: &str = "x-ratelimit-remaining";
const LEGACY_RESET: &str = "x-ratelimit-reset";

/// Names that are ours to say: taken out of requests, so that no upstream takes a client's word for ours.
pub const OURS: [&str; 6] = [
    RATELIMIT,
    RATELIMIT_POLICY,
    LEGACY_LIMIT,
    LEGACY_REMAINING,
    LEGACY_RESET,
    "retry-after-ms",
];

/// Largest integer of a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

/// Which of them a rule's clients get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HeaderStyle {
    None,
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` (seconds from now).
    Legacy,
    #[default]
    Both,
}

impl HeaderStyle {
    /// Adds the fields for how a limit stands.
    pub fn write(self, limit: &str, standing: &Standing<'_>, fields: &mut Fields) {
        if matches!(self, Self::Draft | Self::Both) {
            fields.add(RATELIMIT_POLICY, |text| policy(text, limit, standing));
            fields.add(RATELIMIT, |text| available(text, limit, standing));
        }
        if matches!(self, Self::Legacy | Self::Both) {
            fields.add_number(LEGACY_LIMIT, standing.quota);
            fields.add_number(LEGACY_REMAINING, standing.remaining);
            fields.add_number(LEGACY_RESET, seconds(standing.reset_ms));
        }
    }
}

/// `"per-key";q=100;w=60`. The draft's windows are whole seconds; of another window it says nothing, which it may.
fn policy(text: &mut String, limit: &str, standing: &Standing<'_>) {
    string(text, limit);
    parameter(text, ";q=", standing.quota);
    let seconds = standing.window_ms / 1_000;
    if standing.window_ms.is_multiple_of(1_000) && seconds > 0 {
        parameter(text, ";w=", seconds);
    }
}

/// `"per-key";r=12;t=30`: what is left, and the seconds until the whole quota is there again.
fn available(text: &mut String, limit: &str, standing: &Standing<'_>) {
    string(text, limit);
    parameter(text, ";r=", standing.remaining);
    parameter(text, ";t=", seconds(standing.reset_ms));
}

fn parameter(text: &mut String, name: &str, value: u64) {
    text.push_str(name);
    number(text, value.min(LARGEST));
}

/// A string as structured fields have it: printable ASCII in quotes.
fn string(text: &mut String, name: &str) {
    text.push('"');
    for character in name.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => text.push('?'),
        }
    }
    text.push('"');
}

/// Whole seconds, rounded up.
pub(super) const fn seconds(milliseconds: u64) -> u64 {
    milliseconds.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sfv::{BareItem, ListEntry, Parser};

    fn standing(quota: u64, window_ms: u64, remaining: u64, reset_ms: u64) -> Standing<'static> {
        Standing {
            check: 0,
            limit: "".into(),
            quota,
            window_ms,
            remaining,
            reset_ms,
            retry_after_ms: 0,
            hold_ms: 0,
            receipt: Vec::new(),
        }
    }

    fn written(
        write: fn(&mut String, &str, &Standing<'_>),
        limit: &str,
        standing: &Standing<'_>,
    ) -> String {
        let mut text = String::new();
        write(&mut text, limit, standing);
        text
    }

    /// Name and parameters of the one item of a field, as a parser reads them that is not ours.
    fn read(field: &str) -> (String, Vec<(String, i64)>) {
        let list = Parser::new(field).parse::<sfv::List>().unwrap();
        let [ListEntry::Item(item)] = list.as_slice() else {
            panic!("{field}")
        };
        let BareItem::String(name) = &item.bare_item else {
            panic!("{field}")
        };
        let parameter = |(key, value): (&sfv::Key, &BareItem)| {
            let BareItem::Integer(number) = value else {
                panic!("{field}")
            };
            (key.as_str().to_owned(), i64::from(*number))
        };
        let parameters = item.params.iter().map(parameter).collect();
        (name.as_str().to_owned(), parameters)
    }

    #[test]
    fn the_drafts_fields_are_structured_fields() {
        let standing = standing(100, 60_000, 12, 29_001);
        let named = |name: &str, number| (name.to_owned(), number);
        assert_eq!(
            read(&written(policy, "per-key", &standing)),
            ("per-key".to_owned(), vec![named("q", 100), named("w", 60)])
        );
        assert_eq!(
            read(&written(available, "per-key", &standing)),
            ("per-key".to_owned(), vec![named("r", 12), named("t", 30)])
        );
    }

    #[test]
    fn the_largest_numbers_and_the_strangest_names_are_structured_fields_too() {
        let standing = standing(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        for name in ["", "a\"b\\c", "gr\u{fc}n\r\nset-cookie: a=b", "\u{7f}"] {
            read(&written(policy, name, &standing));
            let (read, _) = read(&written(available, name, &standing));
            assert!(!read.contains(['\r', '\n']));
        }
    }

    #[test]
    fn a_window_that_is_not_whole_seconds_is_left_out() {
        assert_eq!(written(policy, "a", &standing(5, 1_500, 0, 0)), "\"a\";q=5");
        assert_eq!(written(policy, "a", &standing(5, 0, 0, 0)), "\"a\";q=5");
    }
}
