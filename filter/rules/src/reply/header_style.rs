//! The header fields that report a limit's status: those of the IETF draft, and the common older ones.

use sluicegate_protocol::LimitStatus;

use super::header_fields::{HeaderFields, number};
use super::{LimitTexts, families};
use crate::config::terms::{Headers, Reply, Unit};

/// Largest integer in a structured field (RFC 9651).
const LARGEST: u64 = 999_999_999_999_999;

impl Headers {
    /// Whether they are those of a model's API.
    pub(crate) const fn is_of_models(self) -> bool {
        matches!(self, Self::Openai | Self::Anthropic)
    }
}

impl Reply {
    /// What a limit counts.
    pub(super) fn unit_of(&self, limit: &str) -> Unit {
        let mut units = self.units.iter();
        let of = units.find(|(name, _)| name == limit);
        of.map_or(Unit::Requests, |(_, unit)| *unit)
    }

    /// Adds the fields for the status of the limit that decided. `listed` are all limits of the request, this one too;
    /// `until_ms` becomes `t` (see [`available`]); `system_s` is now, in seconds since 1970.
    pub(crate) fn write<'a>(
        &self,
        texts: &LimitTexts,
        listed: impl Iterator<Item = &'a LimitTexts>,
        limit_status: &LimitStatus<'_>,
        until_ms: u64,
        system_s: &dyn Fn() -> u64,
        fields: &mut HeaderFields,
    ) {
        if self.headers.is_of_models() {
            let unit = self.unit_of(&texts.name);
            families::write(self.headers, unit, limit_status, system_s, fields);
        }
        if !matches!(self.headers, Headers::None | Headers::Legacy) {
            fields.add("ratelimit-policy", |text| {
                policies(text, texts, listed, limit_status)
            });
            fields.add("ratelimit", |text| {
                available(text, &texts.policy, limit_status, until_ms)
            });
        }
        if matches!(self.headers, Headers::Legacy | Headers::Both) {
            fields.add_number("x-ratelimit-limit", limit_status.quota);
            fields.add_number("x-ratelimit-remaining", limit_status.remaining);
            if limit_status.has_reset() {
                fields.add_number("x-ratelimit-reset", seconds(limit_status.reset_ms));
            }
        }
    }
}

/// The windows of all these limits, equal for every request that they limit. If the window that decided is not one of the known
/// windows of its limit, it is listed alone: an override or a claim has replaced the others.
fn policies<'a>(
    text: &mut String,
    decided: &LimitTexts,
    listed: impl Iterator<Item = &'a LimitTexts>,
    limit_status: &LimitStatus<'_>,
) {
    let window = (limit_status.quota, limit_status.window_ms);
    let start = text.len();
    for texts in listed {
        let is_own = texts.name == decided.name && !texts.windows.contains(&window);
        if !is_own && texts.policies.is_empty() {
            continue;
        }
        if text.len() > start {
            text.push_str(", ");
        }
        if is_own {
            policy(text, &texts.policy, window, limit_status.at_once);
        } else {
            text.push_str(&texts.policies);
        }
    }
}

/// `"per-key/60s";q=100;w=60`. The draft's windows are whole seconds; `w` is optional and left out for others. `name` is the
/// beginning of the policy's name ([`policy_name`]). Slots have no window: `"streams";q=32;qu="concurrent-requests"`.
pub(super) fn policy(text: &mut String, name: &str, (quota, window_ms): (u64, u64), at_once: bool) {
    policy_name(text, name, window_ms, at_once);
    parameter(text, ";q=", quota);
    if at_once {
        text.push_str(";qu=\"concurrent-requests\"");
    } else if let Some(seconds) = whole_seconds(window_ms) {
        parameter(text, ";w=", seconds);
    }
}

/// `"per-key/60s";r=12;t=30`: the remaining quota, and for how many seconds to rely on no more than that. For an
/// admission, `t` is the time until the whole quota is available again; for a denial it equals retry-after, because `t`
/// must not ask for a longer wait than `Retry-After` does (draft-ietf-httpapi-ratelimit-headers, "Server Behavior"). When slots are
/// free again, nobody knows.
fn available(text: &mut String, name: &str, limit_status: &LimitStatus<'_>, until_ms: u64) {
    policy_name(text, name, limit_status.window_ms, limit_status.at_once);
    parameter(text, ";r=", limit_status.remaining);
    if limit_status.has_reset() {
        parameter(text, ";t=", seconds(until_ms));
    }
}

/// `"per-key/60s"`, `"per-key/1500ms"`: a limit can have several windows, and each is a policy of its own. The name of
/// a limit has no slash, so policy names are unique. `name` is `"per-key/`.
fn policy_name(text: &mut String, name: &str, window_ms: u64, at_once: bool) {
    if at_once {
        text.push_str(name.trim_end_matches('/'));
        return text.push('"');
    }
    text.push_str(name);
    let (length, unit) = match whole_seconds(window_ms) {
        Some(seconds) => (seconds, "s\""),
        None => (window_ms, "ms\""),
    };
    number(text, length);
    text.push_str(unit);
}

/// A duration in seconds, if it is a whole number of seconds.
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

    fn limit_status([quota, window_ms, remaining, reset_ms]: [u64; 4]) -> LimitStatus<'static> {
        LimitStatus {
            check: 0,
            limit: "".into(),
            quota,
            window_ms,
            remaining,
            over: 0,
            reset_ms,
            retry_after_ms: 0,
            until_changed: false,
            at_once: false,
            calendar: None,
            hold_ms: 0,
            unknown: Vec::new(),
            receipt: Vec::new(),
        }
    }

    /// `RateLimit-Policy` and `RateLimit`.
    fn written(limit: &str, limit_status: &LimitStatus<'_>, until_ms: u64) -> (String, String) {
        let (mut first, mut second) = (String::new(), String::new());
        let texts = LimitTexts::new("rule", limit, Vec::new(), None);
        policies(&mut first, &texts, [&texts].into_iter(), limit_status);
        available(&mut second, &texts.policy, limit_status, until_ms);
        (first, second)
    }

    /// Name and parameters of the only item of a field, according to an independent parser.
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
        let limit_status = limit_status([100, 60_000, 12, 29_001]);
        let named = |name: &str, number| (name.to_owned(), number);
        let (policy, available) = written("per-key", &limit_status, 29_001);
        let name = "per-key/60s".to_owned();
        let expected = (name.clone(), vec![named("q", 100), named("w", 60)]);
        assert_eq!(read(&policy), expected);
        let expected = (name, vec![named("r", 12), named("t", 30)]);
        assert_eq!(read(&available), expected);
    }

    #[test]
    fn the_largest_numbers_are_structured_fields_too() {
        let limit_status = limit_status([u64::MAX; 4]);
        let (policy, available) = written("per-key", &limit_status, u64::MAX);
        for field in [policy, available] {
            assert!(read(&field).0.starts_with("per-key/"), "{field}");
        }
    }

    #[test]
    fn a_window_that_is_not_whole_seconds_has_no_w() {
        let (policy, _) = written("a", &limit_status([5, 1_500, 0, 0]), 0);
        assert_eq!(policy, "\"a/1500ms\";q=5");
        let (policy, _) = written("a", &limit_status([5, 0, 0, 0]), 0);
        assert_eq!(policy, "\"a/0ms\";q=5");
    }

    #[test]
    fn each_window_of_a_limit_is_a_policy_of_its_own() {
        let names: Vec<_> = [1, 1_000, 1_500, 60_000, 3_600_000]
            .map(|window_ms| read(&written("per-key", &limit_status([5, window_ms, 0, 0]), 0).1).0)
            .into();
        let expected = ["1ms", "1s", "1500ms", "60s", "3600s"].map(|of| format!("per-key/{of}"));
        assert_eq!(names, expected);
    }
}
