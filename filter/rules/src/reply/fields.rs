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
    /// Adds the fields for how a limit stands; `name` begins the policy's ([`policy_name`]), `until_ms` is what `t` says, see [`available`].
    pub fn write(self, name: &str, standing: &Standing<'_>, until_ms: u64, fields: &mut Fields) {
        if matches!(self, Self::Draft | Self::Both) {
            fields.add(RATELIMIT_POLICY, |text| policy(text, name, standing));
            fields.add(RATELIMIT, |text| available(text, name, standing, until_ms));
        }
        if matches!(self, Self::Legacy | Self::Both) {
            fields.add_number(LEGACY_LIMIT, standing.quota);
            fields.add_number(LEGACY_REMAINING, standing.remaining);
            fields.add_number(LEGACY_RESET, seconds(standing.reset_ms));
        }
    }
}

/// `"per-key/60s";q=100;w=60`. The draft's windows are whole seconds; of another window it says nothing, which it may.
fn policy(text: &mut String, name: &str, standing: &Standing<'_>) {
    policy_name(text, name, standing.window_ms);
    parameter(text, ";q=", standing.quota);
    if let Some(seconds) = whole_seconds(standing.window_ms) {
        parameter(text, ";w=", seconds);
    }
}

/// `"per-key/60s";r=12;t=30`: what is left, and for how many seconds no more than that can be counted on. Of an admission
/// that is the time until the whole quota is there again, of a denial its retry-after: a client must not be told by
/// `t` to wait for longer than by `Retry-After` (draft-ietf-httpapi-ratelimit-headers, "Server Behavior").
fn available(text: &mut String, name: &str, standing: &Standing<'_>, until_ms: u64) {
    policy_name(text, name, standing.window_ms);
    parameter(text, ";r=", standing.remaining);
    parameter(text, ";t=", seconds(until_ms));
}

/// `"per-key/60s"`, `"per-key/1500ms"`: one limit may have several windows, and each is a policy of its own. A limit's
/// name has no slash, so no two policies have the same name. `name` is `"per-key/`.
fn policy_name(text: &mut String, name: &str, window_ms: u64) {
    text.push_str(name);
    let (length, unit) = match whole_seconds(window_ms) {
        Some(seconds) => (seconds, "s\""),
        None => (window_ms, "ms\""),
    };
    number(text, length);
    text.push_str(unit);
}

/// A time in seconds, if it is a whole number of them.
fn whole_seconds(milliseconds: u64) -> Option<u64> {
    (milliseconds > 0 && milliseconds.is_multiple_of(1_000)).then_some(milliseconds / 1_000)
}

fn parameter(text: &mut String, name: &str, value: u64) {
    text.push_str(name);
    number(text, value.min(LARGEST));
}

/// Whole seconds, rounded up.
pub(super) const fn seconds(milliseconds: u64) -> u64 {
    milliseconds.div_ceil(1_000)
}

#[cfg(test)]
mod tests {
    use super::super::LimitTexts;
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

    /// `RateLimit-Policy` and `RateLimit`.
    fn written(limit: &str, standing: &Standing<'_>, until_ms: u64) -> (String, String) {
        let (mut first, mut second) = (String::new(), String::new());
        let name = LimitTexts::new("rule", limit).policy;
        policy(&mut first, &name, standing);
        available(&mut second, &name, standing, until_ms);
        (first, second)
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
        let (policy, available) = written("per-key", &standing, 29_001);
        let name = "per-key/60s".to_owned();
        let told = (name.clone(), vec![named("q", 100), named("w", 60)]);
        assert_eq!(read(&policy), told);
        let told = (name, vec![named("r", 12), named("t", 30)]);
        assert_eq!(read(&available), told);
    }

    #[test]
    fn the_largest_numbers_are_structured_fields_too() {
        let standing = standing(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let (policy, available) = written("per-key", &standing, u64::MAX);
        for field in [policy, available] {
            assert!(read(&field).0.starts_with("per-key/"), "{field}");
        }
    }

    #[test]
    fn a_window_that_is_not_whole_seconds_has_no_w() {
        let (policy, _) = written("a", &standing(5, 1_500, 0, 0), 0);
        assert_eq!(policy, "\"a/1500ms\";q=5");
        let (policy, _) = written("a", &standing(5, 0, 0, 0), 0);
        assert_eq!(policy, "\"a/0ms\";q=5");
    }

    #[test]
    fn f20_each_window_of_a_limit_is_a_policy_of_its_own() {
        let names: Vec<_> = [1, 1_000, 1_500, 60_000, 3_600_000]
            .map(|window_ms| read(&written("per-key", &standing(5, window_ms, 0, 0), 0).1).0)
            .into();
        let expected = ["1ms", "1s", "1500ms", "60s", "3600s"].map(|of| format!("per-key/{of}"));
        assert_eq!(names, expected);
    }
}
