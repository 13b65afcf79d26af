//! Overrides: another quota, no limit or a block for one key of a limit. Pure.

use sluicegate_engine::{Algorithm, BucketSpec, MAX_UNITS};
use sluicegate_protocol::{MAX_BY_BYTES, MAX_REASON_BYTES, OverrideTerms, OverrideWindow};

use super::limits::Limit;
use super::named_window::NamedWindow;
use super::window_file::{spec_fault, window_name};

/// Most overrides in the policy file, and also in the store: every sidecar holds all of them in memory.
pub const MAX_OVERRIDES: usize = 10_000;

/// An override of one key of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// What the key may take.
    pub grant: Grant,
    /// When it ends, in milliseconds since 1970; `None`: it has no end.
    pub until_ms: Option<u64>,
    /// The terms as written, for the list.
    pub terms: OverrideTerms,
}

/// What a key may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Other quotas in some windows.
    Quotas(Vec<WindowQuota>),
    /// Everything.
    Unlimited,
    /// Nothing.
    Blocked,
}

/// Another quota in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowQuota {
    /// Which window.
    pub window: NamedWindow,
    /// Units per window.
    pub quota: u64,
    /// The burst of a token bucket; `None`: the limit's burst, scaled with the quota.
    pub burst: Option<u64>,
}

impl Override {
    /// Validates the terms.
    ///
    /// # Errors
    /// Field, value and remedy.
    pub fn read(terms: OverrideTerms) -> Result<Self, String> {
        let grant = grant(&terms)?;
        let until_ms = terms.until.as_deref().map(until).transpose()?;
        check_texts(terms.reason.as_deref(), terms.by.as_deref())?;
        Ok(Self {
            grant,
            until_ms,
            terms,
        })
    }

    /// Whether it has ended at `now_ms`, in milliseconds since 1970.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until_ms| until_ms <= now_ms)
    }
}

fn grant(terms: &OverrideTerms) -> Result<Grant, String> {
    if terms.burst.is_some() && terms.quota.is_none() {
        return Err("`burst` requires `quota`: give both".to_owned());
    }
    match (
        terms.quota,
        &terms.windows[..],
        terms.unlimited,
        terms.blocked,
    ) {
        (Some(quota), [], false, false) => Ok(Grant::Quotas(vec![WindowQuota {
            window: NamedWindow::Only,
            quota,
            burst: terms.burst,
        }])),
        (None, windows @ [_, ..], false, false) => window_quotas(windows).map(Grant::Quotas),
        (None, [], true, false) => Ok(Grant::Unlimited),
        (None, [], false, true) => Ok(Grant::Blocked),
        _ => Err(
            "give exactly one of `quota`, `windows`, `unlimited: true` and `blocked: true`"
                .to_owned(),
        ),
    }
}

fn window_quotas(windows: &[OverrideWindow]) -> Result<Vec<WindowQuota>, String> {
    let mut quotas: Vec<WindowQuota> = Vec::with_capacity(windows.len());
    for OverrideWindow { quota, per, burst } in windows {
        let window = NamedWindow::read(per)?;
        if quotas.iter().any(|earlier| earlier.window.overlaps(window)) {
            return Err(format!(
                "`windows` names the window of {per} twice: remove one"
            ));
        }
        quotas.push(WindowQuota {
            window,
            quota: *quota,
            burst: *burst,
        });
    }
    Ok(quotas)
}

/// Parses a time in RFC 3339 format to milliseconds since 1970.
fn until(text: &str) -> Result<u64, String> {
    let time: Option<jiff::Timestamp> = text.parse().ok();
    let ms = time.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    ms.ok_or_else(|| {
        "`until` is not a time in RFC 3339 format: use one such as `2026-11-22T03:00:00Z`"
            .to_owned()
    })
}

/// Refuses a reason or an author that an audit line cannot hold.
///
/// # Errors
/// The field, what is wrong with it, and the remedy.
pub fn check_texts(reason: Option<&str>, by: Option<&str>) -> Result<(), String> {
    for (field, text, most) in [
        ("reason", reason.unwrap_or_default(), MAX_REASON_BYTES),
        ("by", by.unwrap_or_default(), MAX_BY_BYTES),
    ] {
        let length = text.len();
        if length > most {
            return Err(format!(
                "`{field}` has {length} bytes; the maximum is {most}: shorten it"
            ));
        }
        // They could break an audit line into several.
        if text.chars().any(char::is_control) {
            return Err(format!(
                "`{field}` contains a control character: write it in one line"
            ));
        }
    }
    Ok(())
}

impl Limit {
    /// The windows of this limit with these quotas.
    ///
    /// # Errors
    /// The limit has no such window, or the quota is invalid there; with the remedy.
    pub fn with_quotas(&self, quotas: &[WindowQuota]) -> Result<Vec<BucketSpec>, String> {
        let mut windows = self.windows.clone();
        for quota in quotas {
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
    let algorithm = match spec.algorithm {
        Algorithm::TokenBucket { burst } => Algorithm::TokenBucket {
            burst: quota
                .burst
                .unwrap_or_else(|| scaled(burst, quota.quota, spec.quota)),
        },
        _ if quota.burst.is_some() => {
            return Err(
                "`burst` belongs to limits with `algorithm: token_bucket` only: remove it"
                    .to_owned(),
            );
        }
        algorithm => algorithm,
    };
    let spec = BucketSpec {
        algorithm,
        quota: quota.quota,
        ..*spec
    };
    spec.check().map_err(|error| spec_fault(&error))?;
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
    use crate::policy::Policy;

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

    fn read(json: &str) -> Result<Override, String> {
        Override::read(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn exactly_one_kind_is_given() {
        let unlimited = read(r#"{"unlimited":true}"#).unwrap();
        assert_eq!(unlimited.grant, Grant::Unlimited);
        assert_eq!(read(r#"{"blocked":true}"#).unwrap().grant, Grant::Blocked);
        for wrong in [
            "{}",
            r#"{"quota":5,"blocked":true}"#,
            r#"{"unlimited":true,"blocked":true}"#,
            r#"{"burst":5,"windows":[{"quota":5,"per":"1s"}]}"#,
            r#"{"windows":[{"quota":5,"per":"1s"},{"quota":6,"per":"1000ms"}]}"#,
            r#"{"windows":[{"quota":5,"per":"soon"}]}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_end_is_a_time_in_any_zone() {
        let with = |until: &str| read(&format!(r#"{{"blocked":true,"until":"{until}"}}"#));
        assert_eq!(with("1970-01-01T00:00:01Z").unwrap().until_ms, Some(1_000));
        let zoned = with("1970-01-01T02:00:01+02:00").unwrap();
        assert_eq!(zoned.until_ms, Some(1_000));
        assert!(!zoned.has_ended(999) && zoned.has_ended(1_000));
        for wrong in ["", "tomorrow", "2026-11-22", "1969-12-31T23:59:59Z"] {
            let why = with(wrong).unwrap_err();
            assert!(why.contains("`until`"), "{wrong}: {why}");
        }
    }

    #[test]
    fn reason_and_author_are_one_short_line() {
        assert!(read(r#"{"blocked":true,"reason":"INC-7: é","by":"ann@host"}"#).is_ok());
        for (field, most) in [("reason", MAX_REASON_BYTES), ("by", MAX_BY_BYTES)] {
            for wrong in ["a\\nb".to_owned(), "a".repeat(most + 1)] {
                let why = read(&format!(r#"{{"blocked":true,"{field}":"{wrong}"}}"#)).unwrap_err();
                assert!(why.contains(field), "{why}");
            }
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
            (of(60, 0), ["`quota`", "is 0"]),
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
