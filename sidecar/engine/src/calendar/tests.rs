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

/// Begin and end, in UTC.
fn window(unit: CalendarUnit, zone: &str, now: &str) -> (String, String) {
    let (start, end) = Calendar::new(unit, zone).unwrap().window_at(at(now));
    (shown(start), shown(end))
}

fn hours(unit: CalendarUnit, zone: &str, now: &str) -> f64 {
    let (start, end) = Calendar::new(unit, zone).unwrap().window_at(at(now));
    f64::from(u32::try_from((end - start) / 1_000_000).unwrap()) / 3_600.0
}

use CalendarUnit::{Day, Month, Week};

#[test]
fn a_month_begins_at_midnight_of_its_first_day_in_the_zone() {
    let (start, end) = window(Month, "Europe/Berlin", "2026-07-31T21:59:59.999999Z");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2026-06-30T22:00:00Z", "2026-07-31T22:00:00Z")
    );
    // One microsecond later it is August in Berlin, and July in UTC.
    assert_eq!(
        window(Month, "Europe/Berlin", "2026-07-31T22:00:00Z").0,
        end
    );
    assert_eq!(
        window(Month, "UTC", "2026-07-31T22:00:00Z").0,
        "2026-07-01T00:00:00Z"
    );
}

#[test]
fn months_have_their_own_lengths_in_leap_years_too() {
    for (now, days) in [
        ("2027-02-10T12:00:00Z", 28.0),
        ("2028-02-29T12:00:00Z", 29.0),
        ("2100-02-10T12:00:00Z", 28.0),
        ("2026-04-10T12:00:00Z", 30.0),
        ("2026-12-31T23:59:59Z", 31.0),
    ] {
        assert_eq!(hours(Month, "UTC", now) / 24.0, days, "{now}");
    }
    // With the change to daylight saving time in it, March lacks an hour, and October has one more.
    assert_eq!(
        hours(Month, "Europe/Berlin", "2026-03-10T12:00:00Z"),
        31.0 * 24.0 - 1.0
    );
    assert_eq!(
        hours(Month, "Europe/Berlin", "2026-10-10T12:00:00Z"),
        31.0 * 24.0 + 1.0
    );
}

#[test]
fn a_week_begins_on_monday() {
    // A Sunday, and the Monday after it.
    let (start, end) = window(Week, "UTC", "2026-11-22T23:59:59Z");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z")
    );
    assert_eq!(window(Week, "UTC", "2026-11-23T00:00:00Z").0, end);
    // Over the end of a year.
    assert_eq!(
        window(Week, "UTC", "2027-01-01T00:00:00Z").0,
        "2026-12-28T00:00:00Z"
    );
    assert_eq!(
        hours(Week, "America/New_York", "2026-03-08T12:00:00Z"),
        167.0
    );
}

#[test]
fn a_day_has_23_24_or_25_hours_and_half_an_hour_less_or_more_on_lord_howe() {
    for (zone, now, expected) in [
        ("Europe/Berlin", "2026-03-29T12:00:00Z", 23.0),
        ("Europe/Berlin", "2026-03-30T12:00:00Z", 24.0),
        ("Europe/Berlin", "2026-10-25T12:00:00Z", 25.0),
        ("Australia/Lord_Howe", "2026-04-05T06:00:00Z", 24.5),
        ("Australia/Lord_Howe", "2026-10-04T06:00:00Z", 23.5),
        ("Asia/Kathmandu", "2026-10-04T06:00:00Z", 24.0),
    ] {
        assert_eq!(hours(Day, zone, now), expected, "{zone} {now}");
    }
    assert_eq!(
        window(Day, "Asia/Kathmandu", "2026-10-04T06:00:00Z").0,
        "2026-10-03T18:15:00Z"
    );
}

#[test]
fn where_midnight_does_not_exist_the_day_begins_when_the_clocks_go_on() {
    // Cairo goes from 0:00 to 1:00 on the last Friday of April, Beirut on the last Sunday of March.
    let (start, end) = window(Day, "Africa/Cairo", "2026-04-24T12:00:00Z");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z")
    );
    assert_eq!(window(Day, "Africa/Cairo", "2026-04-23T21:59:59Z").1, start);
    assert_eq!(hours(Day, "Asia/Beirut", "2026-03-29T12:00:00Z"), 23.0);
}

#[test]
fn a_clock_that_goes_back_over_midnight_does_not_bring_the_old_day_back() {
    // St. John's went from 0:01 on 7 November 2010 back to 23:01 on the 6th.
    let zone = "America/St_Johns";
    let (start, end) = window(Day, zone, "2010-11-07T02:30:30Z");
    assert_eq!(start, "2010-11-07T02:30:00Z");
    for later in [
        "2010-11-07T02:31:00Z",
        "2010-11-07T03:15:00Z",
        "2010-11-07T03:30:00Z",
    ] {
        assert_eq!(
            window(Day, zone, later),
            (start.clone(), end.clone()),
            "{later}"
        );
    }
    assert_eq!(window(Day, zone, "2010-11-07T02:29:59Z").1, start);
}

#[test]
fn a_day_that_a_zone_skipped_is_no_window() {
    // Samoa had no 30 December 2011.
    let (start, end) = window(Day, "Pacific/Apia", "2011-12-30T09:59:59Z");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z")
    );
    let calendar = Calendar::new(Day, "Pacific/Apia").unwrap();
    let edges = calendar.edges(at("2011-12-30T10:00:00Z")).map(shown);
    assert_eq!(edges[0], "2011-12-29T10:00:00Z");
    assert_eq!(edges[1], end);
    assert_eq!(edges[2], "2011-12-31T10:00:00Z");
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
                assert_eq!(
                    [next[0], next[1], next[2]],
                    [edges[1], edges[2], edges[3]],
                    "{zone}"
                );
                assert!(
                    edges[2] - edges[1] <= calendar.longest_us(),
                    "{zone} {edges:?}"
                );
                assert!(before == 0 || edges[1] >= before);
                before = edges[2];
                start = edges[2] + calendar.longest_us() * step * 2;
            }
        }
    }
}

#[test]
fn a_name_that_is_no_zone_is_refused() {
    for name in [
        "",
        "Berlin",
        "CET+1",
        "local",
        "../etc/passwd",
        "Europe/Berlin\n",
    ] {
        assert_eq!(Calendar::new(Day, name), Err(UnknownTimeZone), "{name}");
    }
    assert_eq!(Calendar::new(Day, "utc").unwrap().time_zone(), "UTC");
}

#[test]
fn a_time_that_no_calendar_has_is_in_a_window_all_the_same() {
    for now in [0, 1, u64::from(u32::MAX), 1 << 56] {
        let (start, end) = Calendar::new(Month, "Europe/Berlin")
            .unwrap()
            .window_at(now);
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
