//! A window's `per`, and how an override names a window of its limit by it. Pure.

use jiff::tz::TimeZoneDatabase;
use sluicegate_engine::{BucketSpec, Calendar, CalendarUnit};
use sluicegate_rules::config::nearest;

use super::fields::duration;
use crate::clock::micros;
use crate::mask::shown;

/// The name of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedWindow {
    /// No name: the limit's only window.
    Only,
    /// Its length in microseconds.
    Length(u64),
    /// A calendar window, whatever its time zone.
    Unit(CalendarUnit),
    /// A calendar window and its time zone.
    Calendar(Calendar),
}

impl NamedWindow {
    /// Reads a `per`: `1m`, `month` or `month Europe/Berlin`.
    ///
    /// # Errors
    /// What is wrong with it, and the remedy.
    pub fn read(per: &str) -> Result<Self, String> {
        let (name, zone) = match per.split_once(' ') {
            Some((name, zone)) => (name, Some(zone)),
            None => (per, None),
        };
        let mut units = CalendarUnit::ALL.into_iter();
        match (units.find(|unit| unit.name() == name), zone) {
            (Some(unit), None) => Ok(Self::Unit(unit)),
            (Some(unit), Some(zone)) => calendar(unit, zone)
                .map(Self::Calendar)
                .map_err(|why| format!("`per`: {why}")),
            (None, _) => duration(per)
                .map(|length| Self::Length(micros(length)))
                .map_err(|why| {
                    format!(
                        "`per`: {why}, nor one of the calendar windows `day`, `week` and `month`"
                    )
                }),
        }
    }

    /// The full name of a window.
    pub fn of(spec: &BucketSpec) -> Self {
        let calendar = spec.algorithm.calendar().map(Self::Calendar);
        // A calendar's `window_us` is no length that anybody would name.
        calendar.unwrap_or(Self::Length(spec.window_us))
    }

    /// Whether it is a name of this window.
    pub fn fits(self, spec: &BucketSpec) -> bool {
        self == Self::Only || self.overlaps(Self::of(spec))
    }

    /// Whether one window could have both names.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Unit(unit), Self::Calendar(calendar))
            | (Self::Calendar(calendar), Self::Unit(unit)) => calendar.unit() == unit,
            _ => self == other,
        }
    }
}

/// The windows of a unit in a time zone.
///
/// # Errors
/// There is no such zone: names the nearest.
pub fn calendar(unit: CalendarUnit, zone: &str) -> Result<Calendar, String> {
    Calendar::new(unit, zone).map_err(|unknown| {
        let remedy = match nearest_zone(zone) {
            Some(near) => format!("did you mean `{near}`?"),
            None => unknown.to_string(),
        };
        format!("{} is not a time zone: {remedy}", shown(zone))
    })
}

/// The zone of a city (`berlin`), or the one that this name misspells.
fn nearest_zone(given: &str) -> Option<String> {
    let database = TimeZoneDatabase::bundled();
    let zones: Vec<String> = database.available().map(|zone| zone.to_string()).collect();
    let city = format!("/{}", given.to_lowercase().replace(' ', "_"));
    let mut of_city = zones
        .iter()
        .filter(|zone| zone.to_lowercase().ends_with(&city));
    let near = nearest(given, zones.iter().map(String::as_str)).map(str::to_owned);
    of_city.next().cloned().or(near)
}
