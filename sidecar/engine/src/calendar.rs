//! Calendar windows: the days, weeks and months of a time zone, as instants.
//!
//! A window begins at the first instant of its first day in the zone. So a day with a change to or from daylight saving
//! time has 23 or 25 hours (24.5 on Lord Howe Island), and where midnight is skipped the day begins when the clocks
//! go on. The rules are built into the program, not read from the host: sidecars of one version agree on every window.

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, ToSpan};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// Places that moved across the date line had days of up to 48 hours.
const SLACK_DAYS: u64 = 1;
/// The default time zone of a policy.
pub const DEFAULT_TIME_ZONE: &str = "UTC";

/// The unit of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday, as in ISO 8601.
    Week,
    /// From the first to the last day of a month.
    Month,
}

impl CalendarUnit {
    /// All units.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Its name in policies and bucket keys.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Its largest number of days, ignoring changes of the zone.
    const fn days(self) -> u64 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
        }
    }

    /// The first day of the window that a day belongs to.
    fn first_day(self, day: Date) -> Result<Date, jiff::Error> {
        match self {
            Self::Day => Ok(day),
            Self::Week => day.checked_sub(i64::from(day.weekday().since(Weekday::Monday)).days()),
            Self::Month => Ok(day.first_of_month()),
        }
    }

    fn span(self) -> Span {
        match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        }
    }
}

/// The windows of one unit in one time zone.
// The size of a pointer, so that specs of other algorithms do not grow.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Entry);

struct Entry {
    unit: CalendarUnit,
    time_zone: TimeZone,
    name: String,
    /// The edges of the last query: nearly every query is for the same window.
    last: Mutex<Edges>,
}

/// The starts of four consecutive windows in microseconds since 1970; all 0 at first.
pub(crate) type Edges = [u64; 4];

/// The database has no zone with this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a name of the IANA database, such as `Europe/Berlin`, `America/New_York` or `UTC`")]
pub struct UnknownTimeZone;

/// Every calendar in use, never freed: there are at most three for each zone of the database.
static KNOWN: Mutex<BTreeMap<(CalendarUnit, String), Calendar>> = Mutex::new(BTreeMap::new());

impl Calendar {
    /// The windows of a unit in the zone with this name, ignoring case.
    ///
    /// # Errors
    /// The database has no such zone.
    pub fn new(unit: CalendarUnit, time_zone: &str) -> Result<Self, UnknownTimeZone> {
        let zones = TimeZoneDatabase::bundled();
        let zone = zones.get(time_zone).map_err(|_| UnknownTimeZone)?;
        let name = zone.iana_name().ok_or(UnknownTimeZone)?.to_owned();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let calendar = known.entry((unit, name)).or_insert_with_key(|(_, name)| {
            Self(Box::leak(Box::new(Entry {
                unit,
                name: name.clone(),
                time_zone: zone,
                last: Mutex::default(),
            })))
        });
        Ok(*calendar)
    }

    /// The unit.
    #[must_use]
    pub const fn unit(self) -> CalendarUnit {
        self.0.unit
    }

    /// The zone's name in the database's spelling.
    #[must_use]
    pub fn time_zone(self) -> &'static str {
        &self.0.name
    }

    /// The longest possible window in microseconds.
    #[must_use]
    pub const fn longest_us(self) -> u64 {
        (self.unit().days() + SLACK_DAYS) * DAY_US
    }

    /// Start and end of the window that contains an instant.
    pub(crate) fn window_at(self, now_us: u64) -> (u64, u64) {
        let [_, start_us, end_us, _] = self.edges(now_us);
        (start_us, end_us)
    }

    /// The start of the previous window, the start and end of the window that contains an instant, and the end of the next
    /// window.
    pub(crate) fn edges(self, now_us: u64) -> Edges {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        let [_, start_us, end_us, _] = *last;
        if !(start_us..end_us).contains(&now_us) {
            *last = self.find_edges(now_us).unwrap_or_else(|_| {
                // Beyond the year 9999.
                let start_us = now_us - now_us % self.longest_us();
                [0, 1, 2, 3].map(|n| {
                    let end_us = start_us.saturating_add(n * self.longest_us());
                    end_us.saturating_sub(self.longest_us())
                })
            });
        }
        *last
    }

    fn find_edges(self, now_us: u64) -> Result<Edges, jiff::Error> {
        let now = Timestamp::from_microsecond(i64::try_from(now_us).unwrap_or(i64::MAX))?;
        let unit = self.unit();
        let mut day = unit.first_day(self.0.time_zone.to_datetime(now).date())?;
        // A clock that is set back across midnight shows the previous day again, but the new window has already begun.
        while self.begins_us(day.checked_add(unit.span())?)? <= now_us {
            day = day.checked_add(unit.span())?;
        }
        let start = self.begins_us(day)?;
        let (next_day, end) = self.step(day, unit.span(), start)?;
        let (_, after) = self.step(next_day, unit.span(), end)?;
        // Every earlier window begins in 1970 too: `step` would search them all.
        let before = match start {
            0 => 0,
            _ => self.step(day, -unit.span(), start)?.1,
        };
        Ok([before, start, end, after])
    }

    /// The next window in the direction of `step`: its first day and its start. A day that a zone skipped to cross the date
    /// line is not a window.
    fn step(self, mut day: Date, step: Span, from_us: u64) -> Result<(Date, u64), jiff::Error> {
        loop {
            day = day.checked_add(step)?;
            let begins_us = self.begins_us(day)?;
            if begins_us != from_us {
                return Ok((day, begins_us));
            }
        }
    }

    /// The first instant of a day; 1970 if it was earlier.
    fn begins_us(self, day: Date) -> Result<u64, jiff::Error> {
        let first = day.to_zoned(self.0.time_zone.clone())?.timestamp();
        Ok(u64::try_from(first.as_microsecond()).unwrap_or(0))
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.unit().name(), self.time_zone())
    }
}

#[cfg(test)]
mod tests;
