//! Calendar windows for the model: a new one begins with the first quarter of an hour in which the zone's date is of
//! another day, week or month. Looked for one quarter after the other; it shares no arithmetic with the engine.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use sluicegate_engine::{Calendar, CalendarUnit};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

/// The zones of history.rs change their clocks at such times, and no clock goes back over midnight.
const QUARTER_US: u64 = 15 * 60 * 1_000_000;

/// A calendar, by its unit and its time zone.
type Named = (CalendarUnit, &'static str);

thread_local! {
    /// What was found before: by the calendar, where each window begins and ends.
    static FOUND: RefCell<HashMap<Named, Vec<Range<u64>>>> = RefCell::default();
}

pub fn calendar_window(calendar: Calendar, time: u64) -> Range<u64> {
    let named = (calendar.unit(), calendar.time_zone());
    let known = FOUND.with_borrow(|found| {
        let mut windows = found.get(&named)?.iter();
        windows.find(|window| window.contains(&time)).cloned()
    });
    known.unwrap_or_else(|| {
        let zone = TimeZone::get(calendar.time_zone()).expect("a zone");
        let number = |quarter: u64| number(calendar.unit(), date(&zone, quarter * QUARTER_US));
        let quarter = time / QUARTER_US;
        let this = number(quarter);
        let start = (0..=quarter).rev().find(|quarter| number(*quarter) < this);
        let end = (quarter..).find(|quarter| number(*quarter) > this);
        let window = (start.expect("an earlier window") + 1) * QUARTER_US
            ..end.expect("a later window") * QUARTER_US;
        FOUND.with_borrow_mut(|found| found.entry(named).or_default().push(window.clone()));
        window
    })
}

fn date(zone: &TimeZone, us: u64) -> Date {
    let time = Timestamp::from_microsecond(i64::try_from(us).expect("fits"));
    zone.to_datetime(time.expect("a time")).date()
}

/// Larger for a later day, week or month.
fn number(unit: CalendarUnit, date: Date) -> i64 {
    let day = i64::from((date - Date::constant(1970, 1, 1)).get_days());
    match unit {
        CalendarUnit::Day => day,
        // 1 January 1970 was a Thursday.
        CalendarUnit::Week => (day + 3).div_euclid(7),
        CalendarUnit::Month => i64::from(date.year()) * 12 + i64::from(date.month()),
    }
}
