//! How a check stands in a window of its limit: the only place that makes these numbers. Pure.

use sluicegate_engine::{BucketSpec, CalendarUnit as Unit, Outcome};
use sluicegate_protocol::{CalendarUnit, LimitStatus};

use crate::policy::Limit;

/// The status of a check in this window at the time `at_us`, with nothing left.
pub fn in_window(
    check: usize,
    limit: &Limit,
    spec: &BucketSpec,
    at_us: u64,
) -> LimitStatus<'static> {
    LimitStatus {
        check,
        limit: limit.name.clone().into(),
        quota: spec.most_at_once(),
        window_ms: spec.refill_us(at_us).div_ceil(1_000),
        remaining: 0,
        over: 0,
        reset_ms: 0,
        retry_after_ms: 0,
        until_changed: false,
        at_once: spec.has_slots(),
        calendar: spec
            .algorithm
            .calendar()
            .map(|calendar| match calendar.unit() {
                Unit::Day => CalendarUnit::Day,
                Unit::Week => CalendarUnit::Week,
                Unit::Month => CalendarUnit::Month,
            }),
        hold_ms: 0,
        unknown: Vec::new(),
        receipt: Vec::new(),
    }
}

/// The status of a check after an outcome that this window decided.
pub fn of_outcome(
    check: usize,
    limit: &Limit,
    spec: &BucketSpec,
    outcome: &Outcome,
) -> LimitStatus<'static> {
    LimitStatus {
        remaining: outcome.remaining,
        over: outcome.over,
        reset_ms: match spec.has_slots() {
            true => 0,
            false => outcome.reset_us.div_ceil(1_000),
        },
        retry_after_ms: outcome.retry_after_us.div_ceil(1_000),
        ..in_window(check, limit, spec, outcome.at_us)
    }
}
