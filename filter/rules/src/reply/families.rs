//! The header fields and bodies of the 429s of OpenAI's and Anthropic's APIs, for clients that read those. Nothing in them is ever
//! negative: some of these clients take -1 or a missing unit for a mistake.

use sluicegate_protocol::LimitStatus;

use super::denial_text::write_denial;
use super::header_fields::{HeaderFields, number};
use super::header_style::seconds;
use crate::config::terms::{Headers, Unit};

/// Limit, remaining and reset.
type Names = [&'static str; 3];

/// Adds the fields for the limit that decided, whose units are these. `system_s` is now, in seconds since 1970.
pub(super) fn write(
    family: Headers,
    unit: Unit,
    status: &LimitStatus<'_>,
    system_s: &dyn Fn() -> u64,
    fields: &mut HeaderFields,
) {
    let [limit, remaining, reset] = names(family, unit);
    // Of slots, only an estimate tells when some are free.
    let until_ms = if status.at_once {
        status.retry_after_ms
    } else {
        status.reset_ms
    };
    fields.add_number(limit, status.quota);
    fields.add_number(remaining, status.remaining);
    fields.add(reset, |text| match family {
        Headers::Anthropic => date(text, system_s().saturating_add(seconds(until_ms))),
        _ => duration(text, until_ms),
    });
}

const fn names(family: Headers, unit: Unit) -> Names {
    match (family, unit) {
        (Headers::Anthropic, Unit::Requests) => [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ],
        (Headers::Anthropic, Unit::Tokens) => [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ],
        (Headers::Anthropic, Unit::InputTokens) => [
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-ratelimit-input-tokens-remaining",
            "anthropic-ratelimit-input-tokens-reset",
        ],
        (Headers::Anthropic, Unit::OutputTokens) => [
            "anthropic-ratelimit-output-tokens-limit",
            "anthropic-ratelimit-output-tokens-remaining",
            "anthropic-ratelimit-output-tokens-reset",
        ],
        (_, Unit::Requests) => [
            "x-ratelimit-limit-requests",
            "x-ratelimit-remaining-requests",
            "x-ratelimit-reset-requests",
        ],
        _ => [
            "x-ratelimit-limit-tokens",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
        ],
    }
}

/// The body of a denial, in JSON. No name of a limit has a character that JSON escapes.
pub(super) fn body(
    family: Headers,
    unit: Unit,
    limit: &str,
    status: &LimitStatus<'_>,
    cost: u64,
) -> String {
    let (before, after) = match (family, unit) {
        (Headers::Anthropic, _) => (
            r#"{"type":"error","error":{"type":"rate_limit_error","message":""#,
            r#""}}"#,
        ),
        (_, Unit::Requests) => (
            r#"{"error":{"message":""#,
            r#"","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
        _ => (
            r#"{"error":{"message":""#,
            r#"","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
    };
    let mut text = String::with_capacity(320);
    text.push_str(before);
    write_denial(&mut text, limit, status, cost);
    text.push_str(after);
    text
}

/// As Go writes it: `20ms`, `1s`, `6m0s`, `24h0m0s`; from a second on, whole seconds, rounded up.
fn duration(text: &mut String, ms: u64) {
    if (1..1_000).contains(&ms) {
        number(text, ms);
        return text.push_str("ms");
    }
    let whole = seconds(ms);
    for (length, unit, least) in [(3_600, 'h', 3_600), (60, 'm', 60), (1, 's', 0)] {
        if whole >= least {
            let of = if length == 3_600 { u64::MAX } else { 60 };
            number(text, whole / length % of);
            text.push(unit);
        }
    }
}

/// As RFC 3339 has it: `2026-11-27T05:40:00Z`.
fn date(text: &mut String, system_s: u64) {
    // Years that begin in March have their leap day last; 719,468 days are from 0000-03-01 to 1970-01-01, and 400 years 146,097.
    let days = system_s / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let [h, m, s] = [system_s / 3_600 % 24, system_s / 60 % 60, system_s % 60];
    number(text, year);
    for (before, of) in [('-', month), ('-', day), ('T', h), (':', m), (':', s)] {
        text.push(before);
        if of < 10 {
            text.push('0');
        }
        number(text, of);
    }
    text.push('Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut text = String::new();
        write(&mut text);
        text
    }

    #[test]
    fn a_duration_is_never_shorter_than_it_is() {
        for (ms, expected) in [
            (0, "0s"),
            (1, "1ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_001, "2s"),
            (59_001, "1m0s"),
            (360_000, "6m0s"),
            (3_600_000, "1h0m0s"),
            (90_061_000, "25h1m1s"),
        ] {
            assert_eq!(written(|text| duration(text, ms)), expected);
        }
    }

    /// As `date -u -d @SECONDS +%FT%TZ` says.
    #[test]
    fn a_date_is_that_of_the_calendar() {
        for (system_s, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_795_758_000, "2026-11-27T05:40:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(written(|text| date(text, system_s)), expected);
        }
    }
}
