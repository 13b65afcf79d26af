//! What a denial says to people: what the limit allows, what the request costs, what is left, and until when.

use sluicegate_protocol::{CalendarUnit, LimitStatus};

use super::header_fields::number;

/// Milliseconds.
const UNITS: [(u64, &str); 5] = [
    (86_400_000, "day"),
    (3_600_000, "hour"),
    (60_000, "minute"),
    (1_000, "second"),
    (1, "ms"),
];

/// Appends the text of a denial of `cost` units by this limit.
pub fn write_denial(text: &mut String, limit: &str, status: &LimitStatus<'_>, cost: u64) {
    if status.allows_nothing() {
        text.push_str("by limit `");
        text.push_str(limit);
        text.push_str("`, this request is not allowed at all");
    } else if status.until_changed {
        text.push_str("limit `");
        text.push_str(limit);
        text.push_str("` denies this request until its operator changes that");
    } else if status.at_once {
        write_slots(text, limit, status, cost);
    } else {
        write_window(text, limit, status);
        write_state(text, status, cost);
    }
}

/// Of slots, which are given back when requests end: nobody knows when that is.
fn write_slots(text: &mut String, limit: &str, status: &LimitStatus<'_>, cost: u64) {
    write_quota(text, limit, status);
    text.push_str(" at once, this request needs ");
    number(text, cost);
    text.push_str(", ");
    number(text, status.remaining);
    text.push_str(match status.remaining {
        1 => " is free; try again when another one has ended, by an estimate in ",
        _ => " are free; try again when others have ended, by an estimate in ",
    });
    write_wait(text, status.retry_after_ms);
}

fn write_quota(text: &mut String, limit: &str, status: &LimitStatus<'_>) {
    text.push_str("limit `");
    text.push_str(limit);
    text.push_str("` allows ");
    number(text, status.quota);
}

/// The beginning of the text, which is the same for all denials by a window.
pub(super) fn write_window(text: &mut String, limit: &str, status: &LimitStatus<'_>) {
    write_quota(text, limit, status);
    text.push_str(" per ");
    match status.calendar {
        Some(CalendarUnit::Day) => text.push_str("day"),
        Some(CalendarUnit::Week) => text.push_str("week"),
        Some(CalendarUnit::Month) => text.push_str("month"),
        None => span(text, status.window_ms, ""),
    }
    text.push_str(", this request costs ");
}

/// The rest of the text: what the request costs, what is left, and when it is admitted.
pub(super) fn write_state(text: &mut String, status: &LimitStatus<'_>, cost: u64) {
    number(text, cost);
    text.push_str(", ");
    number(text, status.remaining);
    text.push_str(match status.remaining {
        1 => " is left; the same request is admitted in ",
        _ => " are left; the same request is admitted in ",
    });
    write_wait(text, status.retry_after_ms);
}

/// Rounded up, by a tenth at most from ten seconds on, since a retry before would be denied; `retry_after_ms` is exact.
fn write_wait(text: &mut String, wait_ms: u64) {
    let mut long = UNITS.iter().filter(|(unit, _)| *unit > 1_000);
    let step = long.find(|(unit, _)| wait_ms / 10 >= *unit);
    let step = step.map_or(1_000, |(unit, _)| *unit);
    span(text, wait_ms.div_ceil(step).saturating_mul(step), "1 ");
}

/// `second`, `30 days`, `1500 ms`: in the longest unit of which it is a whole number, with `one` before a single one.
fn span(text: &mut String, ms: u64, one: &str) {
    let mut whole = UNITS.iter().filter(|(unit, _)| ms.is_multiple_of(*unit));
    let (unit, name) = *whole.next().unwrap_or(&(1, "ms"));
    match ms / unit {
        1 => text.push_str(one),
        count => {
            number(text, count);
            text.push(' ');
        }
    }
    text.push_str(name);
    if ms > unit && unit > 1 {
        text.push('s');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of([quota, window_ms, remaining, retry_after_ms]: [u64; 4], cost: u64) -> String {
        let status = LimitStatus {
            check: 0,
            limit: "".into(),
            quota,
            window_ms,
            remaining,
            over: 0,
            reset_ms: 0,
            retry_after_ms,
            until_changed: false,
            at_once: false,
            calendar: None,
            hold_ms: 0,
            unknown: Vec::new(),
            receipt: Vec::new(),
        };
        let mut text = String::new();
        write_denial(&mut text, "l", &status, cost);
        text
    }

    #[test]
    fn a_calendar_window_has_its_name_whatever_its_length() {
        let mut status: LimitStatus<'_> = serde_json::from_str(
            r#"{"check":0,"limit":"l","quota":1,"window_ms":2678400000,"calendar":"month","remaining":0,"reset_ms":1,"retry_after_ms":1}"#,
        )
        .unwrap();
        for (unit, told) in [
            (status.calendar, "allows 1 per month,"),
            (Some(CalendarUnit::Day), "allows 1 per day,"),
            (None, "allows 1 per 31 days,"),
        ] {
            status.calendar = unit;
            let mut text = String::new();
            write_denial(&mut text, "l", &status, 1);
            assert!(text.contains(told), "{text}");
        }
    }

    #[test]
    fn a_denial_is_told_in_units_that_people_read_and_with_the_cost() {
        for (numbers, cost, told) in [
            (
                [50, 60_000, 10, 12_001],
                20,
                "allows 50 per minute, this request costs 20, 10 are left; the same request is admitted in 13 seconds",
            ),
            (
                [1, 2_592_000_000, 0, 2_591_999_000],
                1,
                "allows 1 per 30 days, this request costs 1, 0 are left; the same request is admitted in 30 days",
            ),
            (
                [5, 1_500, 1, 7],
                2,
                "allows 5 per 1500 ms, this request costs 2, 1 is left; the same request is admitted in 1 second",
            ),
            (
                [5, 86_400_000, 0, 3_600_001],
                1,
                "allows 5 per day, this request costs 1, 0 are left; the same request is admitted in 61 minutes",
            ),
            (
                [5, 90_000, 0, 60_000],
                1,
                "allows 5 per 90 seconds, this request costs 1, 0 are left; the same request is admitted in 1 minute",
            ),
        ] {
            assert_eq!(of(numbers, cost), format!("limit `l` {told}"));
        }
    }
}
