//! How an override names a window of its limit. Pure.

use sluicegate_engine::{Algorithm, BucketSpec, Calendar, CalendarUnit};

use super::file::duration;
use crate::clock::micros;

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
        let (unit, zone) = match per.split_once(' ') {
            Some((unit, zone)) => (unit, Some(zone)),
            None => (per, None),
        };
        let unit = CalendarUnit::ALL
            .into_iter()
            .find(|known| known.name() == unit);
        match (unit, zone) {
            (None, _) => {
                let length = duration(per).map_err(|why| {
                    format!("`per`: {why}, nor a calendar window such as `month` or `month Europe/Berlin`")
                })?;
                Ok(Self::Length(micros(length)))
            }
            (Some(unit), None) => Ok(Self::Unit(unit)),
            (Some(unit), Some(zone)) => {
                Calendar::new(unit, zone)
                    .map(Self::Calendar)
                    .map_err(|unknown| {
                        let unit = unit.name();
                        format!("`per`: no time zone after `{unit}`: {unknown}")
                    })
            }
        }
    }

    /// Whether it is a name of this window.
    pub fn fits(self, spec: &BucketSpec) -> bool {
        match (self, spec.algorithm) {
            (Self::Only, _) => true,
            (Self::Unit(unit), Algorithm::CalendarWindow(calendar)) => calendar.unit() == unit,
            (Self::Calendar(named), Algorithm::CalendarWindow(calendar)) => named == calendar,
            // Their `window_us` is no length that anybody would name.
            (Self::Length(_), Algorithm::CalendarWindow(_)) => false,
            (Self::Length(window_us), _) => spec.window_us == window_us,
            (Self::Unit(_) | Self::Calendar(_), _) => false,
        }
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
