//! One window of a limit in the policy file, the fields that each algorithm has there, and their validation.

#![deny(clippy::wildcard_enum_match_arm)]

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_engine::{
    Algorithm, BucketSpec, CalendarUnit, DEFAULT_TIME_ZONE, MAX_UNITS, SpecError,
};

use super::fields::duration;
use super::named_window::{NamedWindow, calendar};
use crate::clock::micros;
use crate::mask::shown;

/// one of `sliding_log`, `sliding_window`, `fixed_window`, `token_bucket` and `concurrency`
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum AlgorithmName {
    SlidingLog,
    SlidingWindow,
    FixedWindow,
    TokenBucket,
    Concurrency,
}

impl AlgorithmName {
    /// The fields that its windows have beside `quota` and `per`.
    const fn fields(self) -> &'static [&'static str] {
        match self {
            Self::SlidingLog => &[],
            Self::SlidingWindow => &["precision"],
            Self::FixedWindow => &["time_zone"],
            Self::TokenBucket => &["burst"],
            Self::Concurrency => &[],
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowFile {
    /// a whole number; 0 allows nothing at all
    #[schemars(range(min = 0, max = MAX_UNITS))]
    quota: u64,
    /// a duration such as `10s`, `1m` or `24h`, or `day`, `week` or `month`; or the time after which a slot of `algorithm: concurrency` ends, such as `30s`
    pub(super) per: String,
    /// a name such as `Europe/Berlin`
    #[serde(default)]
    time_zone: Option<String>,
    /// a duration such as `10s`, `1m` or `24h`
    #[serde(default)]
    precision: Option<String>,
    /// a whole number of 1 or more
    #[serde(default)]
    #[schemars(range(min = 1, max = MAX_UNITS))]
    burst: Option<u64>,
}

/// The bounds of quotas that requests may carry.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct QuotaFromRequest {
    /// a whole number of 1 or more
    #[schemars(range(min = 1, max = MAX_UNITS))]
    pub(super) max: u64,
}

impl WindowFile {
    pub(super) fn validate(&self, algorithm: AlgorithmName) -> Result<BucketSpec, String> {
        for (field, is_given, of) in [
            ("precision", self.precision.is_some(), "sliding_window"),
            ("burst", self.burst.is_some(), "token_bucket"),
        ] {
            if is_given && !algorithm.fields().contains(&field) {
                return Err(format!(
                    "`{field}` belongs to `algorithm: {of}` only: remove it"
                ));
            }
        }
        let (algorithm, window_us) = match NamedWindow::read(&self.per)? {
            NamedWindow::Unit(unit) => self.calendar_window(algorithm, unit)?,
            NamedWindow::Length(window_us) => (self.plain_window(algorithm, window_us)?, window_us),
            NamedWindow::Calendar(_) | NamedWindow::Only => {
                let per = shown(&self.per);
                return Err(format!("`per` is {per}: name the zone in `time_zone`"));
            }
        };
        let spec = BucketSpec {
            algorithm,
            quota: self.quota,
            window_us,
        };
        let fault = |error| spec_fault(&error, self.quota, self.burst);
        // What allows nothing is never counted. A token bucket has a rate in any case, and slots are in use.
        let is_nothing = self.quota == 0 && !spec.is_level() && !spec.has_slots();
        let counted = BucketSpec {
            quota: spec.quota.max(u64::from(is_nothing)),
            ..spec
        };
        counted.check().map_err(fault)?;
        Ok(spec)
    }

    fn calendar_window(
        &self,
        algorithm: AlgorithmName,
        unit: CalendarUnit,
    ) -> Result<(Algorithm, u64), String> {
        let per = unit.name();
        if !algorithm.fields().contains(&"time_zone") {
            let same = match unit {
                CalendarUnit::Day => "24h",
                CalendarUnit::Week => "7d",
                CalendarUnit::Month => "30d",
            };
            return Err(format!(
                "`per: {per}` is a calendar window, which requires `algorithm: fixed_window`: use that, or `per: {same}`"
            ));
        }
        let zone = self.time_zone.as_deref().unwrap_or(DEFAULT_TIME_ZONE);
        let calendar = calendar(unit, zone).map_err(|why| format!("`time_zone`: {why}"))?;
        Ok((Algorithm::CalendarWindow(calendar), calendar.longest_us()))
    }

    fn plain_window(&self, algorithm: AlgorithmName, window_us: u64) -> Result<Algorithm, String> {
        if self.time_zone.is_some() {
            let why = "`time_zone` belongs to `per: day`, `week` or `month` only: remove it, or use one of those";
            return Err(why.to_owned());
        }
        Ok(match algorithm {
            AlgorithmName::SlidingLog => Algorithm::SlidingLog,
            AlgorithmName::SlidingWindow => {
                let given = self.precision.as_deref().map(duration).transpose();
                let given = given.map_err(|why| format!("`precision`: {why}"))?;
                Algorithm::SlidingWindow {
                    precision_us: given.map_or_else(|| default_precision_us(window_us), micros),
                    leased: false,
                }
            }
            AlgorithmName::FixedWindow => Algorithm::FixedWindow,
            AlgorithmName::TokenBucket => Algorithm::TokenBucket {
                burst: self.burst.unwrap_or(self.quota),
            },
            AlgorithmName::Concurrency => Algorithm::Slots,
        })
    }
}

pub(super) fn check_max_quota(max: u64, windows: &[BucketSpec]) -> Result<(), String> {
    let [window] = windows else {
        return Err(format!(
            "the limit has {} windows, and a request asks for one quota: give every other window a limit of its own",
            windows.len()
        ));
    };
    if window.is_level() {
        let why = "a `token_bucket` keeps its state in units of its rate, and quotas from requests would change the rate with each of them: use `sliding_window`";
        return Err(why.to_owned());
    }
    if max < window.quota || max > MAX_UNITS {
        return Err(format!(
            "`max` is {max}: use the window's quota, {}, to {MAX_UNITS}",
            window.quota
        ));
    }
    Ok(())
}

/// Describes an invalid number with the field names of the file.
pub(super) fn spec_fault(error: &SpecError, quota: u64, burst: Option<u64>) -> String {
    // The engine's field names differ from the file's.
    let (field, value) = match error.field {
        "window" => ("per", length(error.value)),
        "precision" => ("precision", length(error.value)),
        // That of the quota.
        "burst" if burst.is_none() => ("quota", quota.to_string()),
        field => (field, error.value.to_string()),
    };
    format!("`{field}` is {value}: {}", error.remedy)
}

fn length(us: u64) -> String {
    match us.is_multiple_of(1_000_000) {
        true => format!("{}s", us / 1_000_000),
        false => format!("{us}us"),
    }
}

/// A window's name, for people and metric labels: `1m`, `month Europe/Berlin`, `at once`.
pub fn window_name(spec: &BucketSpec) -> String {
    match spec.algorithm.calendar() {
        Some(calendar) => format!("{} {}", calendar.unit().name(), calendar.time_zone()),
        None if spec.has_slots() => AT_ONCE.to_owned(),
        None => humantime::format_duration(Duration::from_micros(spec.window_us)).to_string(),
    }
}

/// What a window admits, for people: `20 per 10m`, `32 at once`, `nothing`.
pub fn window_quota(spec: &BucketSpec) -> String {
    if spec.quota == 0 {
        return "nothing".to_owned();
    }
    let name = window_name(spec);
    let per = if name == AT_ONCE { "" } else { "per " };
    format!("{} {per}{name}", spec.quota)
}

/// In place of the length of a window that counts slots.
const AT_ONCE: &str = "at once";

/// A sixtieth of the window (a second for a minute), at least a millisecond.
fn default_precision_us(window_us: u64) -> u64 {
    (window_us / 60).max(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::test_table::{has_all, rows};

    fn windows(algorithm: &str, windows: &str) -> Result<Vec<BucketSpec>, String> {
        let policy = Policy::parse(&format!(
            "limits:\n  l:\n    algorithm: {algorithm}\n    windows:\n{windows}\n"
        ))?;
        Ok(policy.limit("l").unwrap().windows.clone())
    }

    #[test]
    fn an_algorithm_is_told_by_the_name_that_it_is_given_by() {
        let given = [
            "sliding_log",
            "sliding_window",
            "fixed_window",
            "token_bucket",
            "concurrency",
        ];
        let told =
            given.map(|name| windows(name, "      - { quota: 9, per: 3s }").unwrap()[0].name());
        assert_eq!(told, given);
    }

    #[test]
    fn a_calendar_window_is_in_its_time_zone_and_else_in_utc() {
        let read = windows(
            "fixed_window",
            "      - { quota: 9, per: month, time_zone: Europe/Berlin }
      - { quota: 5, per: month, time_zone: Asia/Tokyo }
      - { quota: 4, per: week }
      - { quota: 2, per: day }
      - { quota: 1, per: 2d }",
        );
        let read = read.unwrap();
        let names: Vec<_> = read.iter().map(window_name).collect();
        let expected = "month Europe/Berlin, month Asia/Tokyo, week UTC, day UTC, 2days";
        assert_eq!(names.join(", "), expected);
        assert_eq!(read[0].quota, 9);
    }

    #[test]
    fn what_is_wrong_with_a_calendar_window_is_refused_with_a_remedy() {
        let table = r"
            sliding_log | per: month | `per: month`, fixed_window, `per: 30d`
            token_bucket | per: day | `per: day`, fixed_window, `per: 24h`
            fixed_window | per: month, time_zone: Berlin | `time_zone`, Berlin, did you mean `Europe/Berlin`?
            fixed_window | per: month, time_zone: Europe/Berln | `Europe/Berln`, did you mean `Europe/Berlin`?
            fixed_window | per: month, time_zone: new york | did you mean `America/New_York`?
            fixed_window | per: month, time_zone: Atlantis | `Atlantis`, IANA
            fixed_window | per: month Europe/Berlin | `per` is `month Europe/Berlin`, `time_zone`
            fixed_window | per: 1h, time_zone: UTC | `time_zone`, `per: day`, remove it
            fixed_window | per: year | `per`, year, `month`
            fixed_window | per: day, burst: 3 | `burst`, token_bucket
            fixed_window | per: day, precision: 1s | `precision`, sliding_window
        ";
        for [algorithm, window, named] in rows(table) {
            let message = windows(&algorithm, &format!("      - {{ quota: 9, {window} }}"));
            let message = message.unwrap_err();
            has_all(&message, &named);
            has_all(&message, "line 5, window 1");
        }
        let twice =
            "      - { quota: 9, per: day }\n      - { quota: 8, per: day, time_zone: utc }";
        let message = windows("fixed_window", twice).unwrap_err();
        has_all(&message, "line 6, occurs twice");
    }
}
