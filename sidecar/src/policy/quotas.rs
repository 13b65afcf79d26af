//! The windows of a limit with the quotas of an override. Pure.

use sluicegate_engine::{BucketSpec, MAX_UNITS};

use super::limits::Limit;
use super::named_window::NamedWindow;
use super::overrides::WindowQuota;
use super::window_file::{spec_fault, window_name};

impl Limit {
    /// The windows of this limit with these quotas.
    ///
    /// # Errors
    /// The limit has no such window, or the quota is invalid there; with the remedy.
    pub fn with_quotas(&self, quotas: &[WindowQuota]) -> Result<Vec<BucketSpec>, String> {
        let mut windows = self.windows.clone();
        for quota in quotas {
            if self.expire_us().is_some() && quota.window != NamedWindow::Only {
                return Err(format!(
                    "`windows`: limit `{}` counts what is in use at once, which has no `per`: give `quota` alone",
                    self.name
                ));
            }
            let mut fitting = windows.iter_mut().filter(|spec| quota.window.fits(spec));
            let (Some(spec), None) = (fitting.next(), fitting.next()) else {
                return Err(self.which_window(quota.window));
            };
            *spec = with_quota(spec, quota)?;
        }
        Ok(windows)
    }

    /// Why a name is not that of one window of this limit.
    fn which_window(&self, named: NamedWindow) -> String {
        let names: Vec<_> = self.windows.iter().map(window_name).collect();
        let (limit, count) = (&self.name, names.len());
        let first = names.first().map_or("1m", String::as_str);
        let names = format!("`{}`", names.join("`, `"));
        match named {
            NamedWindow::Only => format!(
                "`quota`: limit `{limit}` has {count} windows ({names}): name the windows that change, as in `windows: [{{ quota: 500, per: {first} }}]`"
            ),
            NamedWindow::Unit(unit) if self.windows.iter().any(|spec| named.fits(spec)) => format!(
                "`per`: limit `{limit}` has several windows `{}`: name the time zone too; it has {names}",
                unit.name()
            ),
            _ => format!("`per`: limit `{limit}` has no such window; it has {names}"),
        }
    }
}

fn with_quota(spec: &BucketSpec, quota: &WindowQuota) -> Result<BucketSpec, String> {
    if quota.quota == 0 {
        return Err(format!(
            "`quota` is 0: block the key instead, or use 1 to {MAX_UNITS}"
        ));
    }
    let (before, mut spec) = (spec.quota, *spec);
    spec.quota = quota.quota;
    match (spec.algorithm.burst_mut(), quota.burst) {
        (Some(burst), None) => *burst = scaled(*burst, quota.quota, before),
        (Some(burst), Some(given)) => *burst = given,
        (None, Some(_)) => {
            let why = "`burst` belongs to limits with `algorithm: token_bucket` only: remove it";
            return Err(why.to_owned());
        }
        (None, None) => {}
    }
    let fault = |error| spec_fault(&error, quota.quota, quota.burst);
    spec.check().map_err(fault)?;
    Ok(spec)
}

/// Scales a burst with its quota, rounded up; at most the units that a bucket can hold.
fn scaled(burst: u64, quota: u64, before: u64) -> u64 {
    let scaled = (u128::from(burst) * u128::from(quota)).div_ceil(u128::from(before.max(1)));
    u64::try_from(scaled)
        .unwrap_or(u64::MAX)
        .clamp(1, MAX_UNITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Grant, Override, Policy};

    fn read(json: &str) -> Result<Override, String> {
        Override::read(serde_json::from_str(json).unwrap())
    }

    fn limit(text: &str) -> Limit {
        let policy = format!("limits: {{ l: {text} }}");
        let policy = Policy::parse(&policy).unwrap();
        Limit::clone(policy.limit("l").unwrap())
    }

    fn quota(quota: u64) -> WindowQuota {
        WindowQuota {
            window: NamedWindow::Only,
            quota,
            burst: None,
        }
    }

    #[test]
    fn windows_that_are_not_named_keep_their_quotas() {
        let limit = limit(
            "{ algorithm: sliding_log, windows: [{ quota: 5, per: 1s }, { quota: 50, per: 1m }] }",
        );
        let of = |seconds: u64, units| WindowQuota {
            window: NamedWindow::Length(seconds * 1_000_000),
            ..quota(units)
        };
        let quotas = limit.with_quotas(&[of(60, 500)]).unwrap();
        assert_eq!([quotas[0].quota, quotas[1].quota], [5, 500]);
        for (wrong, named) in [
            (quota(500), ["2 windows", "`1m`"]),
            (of(3_600, 500), ["`1s`", "`1m`"]),
            (of(60, 0), ["`quota` is 0", "block the key"]),
        ] {
            let why = limit.with_quotas(&[wrong]).unwrap_err();
            assert!(named.iter().all(|name| why.contains(name)), "{why}");
        }
    }

    /// `per: 2d` of an override changed the window of a day once, which may last as long when the clock is moved.
    #[test]
    fn calendar_windows_are_named_as_in_the_policy() {
        let changed = |windows: &str, per: &str| {
            let limit = format!("{{ algorithm: fixed_window, windows: {windows} }}");
            let limit = self::limit(&limit);
            let terms = format!(r#"{{"windows":[{{"quota":7,"per":"{per}"}}]}}"#);
            let Grant::Quotas(quotas) = read(&terms)?.grant else {
                panic!("{terms}");
            };
            let quotas = limit.with_quotas(&quotas)?;
            Ok::<_, String>(quotas.iter().map(|spec| spec.quota).collect::<Vec<_>>())
        };
        let month = "{ quota: 9, per: month, time_zone: Europe/Berlin }";
        let contract = &*format!("[{month}, {{ quota: 2, per: day }}]");
        assert_eq!(changed(contract, "month").unwrap(), [7, 2]);
        assert_eq!(changed(contract, "month Europe/Berlin").unwrap(), [7, 2]);
        assert_eq!(changed(contract, "day UTC").unwrap(), [9, 7]);
        let days = "[{ quota: 2, per: day }, { quota: 3, per: 2d }]";
        assert_eq!(changed(days, "2d").unwrap(), [2, 7]);
        assert_eq!(changed(days, "day").unwrap(), [7, 3]);
        let zones = "[{ quota: 2, per: day }, { quota: 3, per: day, time_zone: Asia/Tokyo }]";
        assert_eq!(changed(zones, "day Asia/Tokyo").unwrap(), [2, 7]);
        for (windows, per, named) in [
            (contract, "31d", "it has `month Europe/Berlin`, `day UTC`"),
            (contract, "week", "it has `month Europe/Berlin`, `day UTC`"),
            (contract, "month UTC", "it has `month Europe/Berlin`"),
            (contract, "month Berlin", "time zone"),
            (contract, "year", "`month`"),
            (zones, "day", "name the time zone too"),
        ] {
            let why = changed(windows, per).unwrap_err();
            assert!(why.contains("`per`") && why.contains(named), "{per}: {why}");
        }
        let twice = r#"{"windows":[{"quota":7,"per":"day"},{"quota":8,"per":"day UTC"}]}"#;
        assert!(read(twice).unwrap_err().contains("twice"));
    }

    #[test]
    fn a_burst_is_given_or_scaled_with_the_quota() {
        let windows = "[{ quota: 100, per: 1m, burst: 5 }]";
        let limit = limit(&format!(
            "{{ algorithm: token_bucket, windows: {windows} }}"
        ));
        let burst = |quota| limit.with_quotas(&[quota]).unwrap()[0].most_at_once();
        assert_eq!(burst(quota(1_000)), 50);
        assert_eq!(burst(quota(1)), 1);
        assert_eq!(burst(quota(130)), 7, "rounded up");
        let given = WindowQuota {
            burst: Some(9),
            ..quota(1_000)
        };
        assert_eq!(burst(given), 9);
    }
}
