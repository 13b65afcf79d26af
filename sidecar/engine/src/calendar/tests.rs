//! Days of 23, 24.5 and 25 hours, weeks, months, leap years, and every zone of the database.

use super::*;

fn at(text: &str) -> u64 {
    let time: Timestamp = text.parse().unwrap();
    u64::try_from(time.as_microsecond()).unwrap()
}

fn shown(us: u64) -> String {
    let time = Timestamp::from_microsecond(i64::try_from(us).unwrap());
    time.unwrap().to_string()
}

/// A line of a table: a calendar, a time, and what else it says.
fn read(line: &str) -> (Calendar, u64, Vec<&str>) {
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap();
    let unit = next();
    let unit = CalendarUnit::ALL.into_iter().find(|one| one.name() == unit);
    let calendar = Calendar::new(unit.unwrap(), next()).unwrap();
    (calendar, at(next()), words.collect())
}

use CalendarUnit::{Day, Month, Week};

/// Unit, zone and a time, and where its window begins and ends.
const WINDOWS: &str = "
    # A month begins at midnight of its first day in the zone: a microsecond later it is August in Berlin, and July in UTC.
    month Europe/Berlin 2026-07-31T21:59:59.999999Z 2026-06-30T22:00:00Z 2026-07-31T22:00:00Z
    month Europe/Berlin 2026-07-31T22:00:00Z        2026-07-31T22:00:00Z 2026-08-31T22:00:00Z
    month UTC           2026-07-31T22:00:00Z        2026-07-01T00:00:00Z 2026-08-01T00:00:00Z
    # A week begins on Monday, also over the end of a year.
    week UTC 2026-11-22T23:59:59Z 2026-11-16T00:00:00Z 2026-11-23T00:00:00Z
    week UTC 2026-11-23T00:00:00Z 2026-11-23T00:00:00Z 2026-11-30T00:00:00Z
    week UTC 2027-01-01T00:00:00Z 2026-12-28T00:00:00Z 2027-01-04T00:00:00Z
    day Asia/Kathmandu 2026-10-04T06:00:00Z 2026-10-03T18:15:00Z 2026-10-04T18:15:00Z
    # Where midnight does not exist, the day begins when the clocks go on: Cairo goes from 0:00 to 1:00.
    day Africa/Cairo 2026-04-23T21:59:59Z 2026-04-22T22:00:00Z 2026-04-23T22:00:00Z
    day Africa/Cairo 2026-04-24T12:00:00Z 2026-04-23T22:00:00Z 2026-04-24T21:00:00Z
    # A clock that goes back over midnight does not bring the old day back: St. John's went from 0:01 to 23:01.
    day America/St_Johns 2010-11-07T02:29:59Z 2010-11-06T02:30:00Z 2010-11-07T02:30:00Z
    day America/St_Johns 2010-11-07T02:30:30Z 2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
    day America/St_Johns 2010-11-07T02:31:00Z 2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
    day America/St_Johns 2010-11-07T03:15:00Z 2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
    day America/St_Johns 2010-11-07T03:30:00Z 2010-11-07T02:30:00Z 2010-11-08T03:30:00Z
    # Samoa had no 30 December 2011.
    day Pacific/Apia 2011-12-30T09:59:59Z 2011-12-29T10:00:00Z 2011-12-30T10:00:00Z
    day Pacific/Apia 2011-12-30T10:00:00Z 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z";

/// Unit, zone and a time, and the hours of its window.
const HOURS: &str = "
    # Months have their own lengths, in leap years too; with a change of the clocks an hour less or more.
    month UTC 2027-02-10T12:00:00Z 672
    month UTC 2028-02-29T12:00:00Z 696
    month UTC 2100-02-10T12:00:00Z 672
    month UTC 2026-04-10T12:00:00Z 720
    month UTC 2026-12-31T23:59:59Z 744
    month Europe/Berlin 2026-03-10T12:00:00Z 743
    month Europe/Berlin 2026-10-10T12:00:00Z 745
    week America/New_York 2026-03-08T12:00:00Z 167
    day Europe/Berlin 2026-03-29T12:00:00Z 23
    day Europe/Berlin 2026-03-30T12:00:00Z 24
    day Europe/Berlin 2026-10-25T12:00:00Z 25
    day Asia/Beirut 2026-03-29T12:00:00Z 23
    day Asia/Kathmandu 2026-10-04T06:00:00Z 24
    # Half an hour on Lord Howe.
    day Australia/Lord_Howe 2026-04-05T06:00:00Z 24.5
    day Australia/Lord_Howe 2026-10-04T06:00:00Z 23.5";

fn rows(table: &str) -> impl Iterator<Item = &str> {
    let rows = table.lines().map(str::trim);
    rows.filter(|row| !row.is_empty() && !row.starts_with('#'))
}

#[test]
fn windows_begin_and_end_at_midnight_in_their_zone() {
    for row in rows(WINDOWS) {
        let (calendar, now, expected) = read(row);
        let (start, end) = calendar.window_at(now);
        assert_eq!([shown(start), shown(end)], expected[..], "{row}");
    }
}

#[test]
fn months_weeks_and_days_are_as_long_as_the_clocks_make_them() {
    for row in rows(HOURS) {
        let (calendar, now, expected) = read(row);
        let (start, end) = calendar.window_at(now);
        let hours = (end - start) as f64 / 3_600e6;
        assert_eq!(hours.to_string(), expected[0], "{row}");
    }
}

#[test]
fn windows_follow_each_other_without_a_gap_in_every_zone() {
    let from = at("2010-01-01T00:00:00Z");
    for zone in TimeZoneDatabase::bundled().available() {
        for unit in CalendarUnit::ALL {
            let Ok(calendar) = Calendar::new(unit, zone.as_str()) else {
                continue;
            };
            let (mut before, mut start) = (0, from);
            // Further apart each time: all parts of a year, changes of the clocks among them.
            for step in 0..6 {
                let edges = calendar.edges(start);
                assert!(edges.is_sorted() && edges[0] < edges[1], "{zone} {edges:?}");
                assert!((edges[1]..edges[2]).contains(&start), "{zone} {edges:?}");
                assert_eq!(calendar.edges(edges[2] - 1), edges, "{zone}");
                let next = calendar.edges(edges[2]);
                assert_eq!(next[..3], edges[1..], "{zone}");
                let length_us = edges[2] - edges[1];
                assert!(length_us <= calendar.longest_us(), "{zone} {edges:?}");
                assert!(before == 0 || edges[1] >= before);
                before = edges[2];
                start = edges[2] + calendar.longest_us() * step * 2;
            }
        }
    }
}

#[test]
fn a_name_that_is_no_zone_is_refused() {
    for name in ",Berlin,CET+1,local,../etc/passwd,Europe/Berlin\n".split(',') {
        assert_eq!(Calendar::new(Day, name), Err(UnknownTimeZone), "{name}");
    }
    assert_eq!(Calendar::new(Day, "utc").unwrap().time_zone(), "UTC");
}

#[test]
fn a_time_that_no_calendar_has_is_in_a_window_all_the_same() {
    for now in [0, 1, u64::from(u32::MAX), 1 << 56] {
        let month = Calendar::new(Month, "Europe/Berlin").unwrap();
        let (start, end) = month.window_at(now);
        assert!(start <= now && now <= end, "{now}");
    }
}

/// All windows before 1970 begin in 1970, and the search for an earlier one went on to the year -9999: a second, and wrong
/// edges in the end.
#[test]
fn no_window_is_looked_for_before_1970() {
    const HOUR_US: u64 = 3_600 * 1_000_000;
    let edges = |unit| {
        let calendar = Calendar::new(unit, "America/New_York").unwrap();
        calendar.edges(1).map(|us| us / HOUR_US)
    };
    assert_eq!(edges(Day), [0, 0, 5, 24 + 5]);
    // Monday was 5 January.
    assert_eq!(edges(Week), [0, 0, 4 * 24 + 5, 11 * 24 + 5]);
    assert_eq!(edges(Month), [0, 0, 5, 31 * 24 + 5]);
}
