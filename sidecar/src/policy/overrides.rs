//! Overrides: another quota, no limit or a block for one key of a limit. Pure.

use sluicegate_protocol::{MAX_BY_BYTES, MAX_REASON_BYTES, OverrideTerms, OverrideWindow};

use super::named_window::NamedWindow;

/// Most overrides in the policy file, and also in the store: every sidecar holds all of them in memory.
pub const MAX_OVERRIDES: usize = 10_000;

/// How long a removed override is remembered: a sidecar that was cut off for less does not restore it.
pub const REMEMBERED_MS: u64 = 86_400_000;

/// An override of one key of a limit, in the policy file or in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// What the key may take.
    pub grant: Grant,
    /// When it ends, in milliseconds since 1970; `None`: it has no end.
    pub until_ms: Option<u64>,
    /// The terms as written, for the list.
    pub terms: OverrideTerms,
    /// What has happened to it.
    pub mark: Mark,
    /// That of the change that made it; 0 if it is not in a store, or not yet.
    pub version: u64,
}

/// What has happened to an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It was set.
    Set,
    /// It was lost from the store, and a sidecar that knew it has written it back.
    Restored,
    /// It was removed or replaced, and is back. Not in force.
    Returned,
    /// It was removed. Not in force.
    Removed,
}

/// What a key may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant<Quotas = Vec<WindowQuota>> {
    /// Other quotas in some windows.
    Quotas(Quotas),
    /// Everything.
    Unlimited,
    /// Nothing.
    Blocked,
}

impl<Quotas> Grant<Quotas> {
    /// In metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Quotas(_) => "quota",
            Self::Unlimited => "unlimited",
            Self::Blocked => "blocked",
        }
    }
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
    pub fn read(mut terms: OverrideTerms) -> Result<Self, String> {
        terms.key = None;
        let grant = grant(&terms)?;
        let until_ms = terms.until.as_deref().map(until).transpose()?;
        check_texts(terms.reason.as_deref(), terms.by.as_deref())?;
        Ok(Self {
            grant,
            until_ms,
            terms,
            mark: Mark::Set,
            version: 0,
        })
    }

    /// Whether it has an effect until it ends.
    pub const fn is_in_force(&self) -> bool {
        matches!(self.mark, Mark::Set | Mark::Restored)
    }

    /// Whether it marks a removal.
    pub fn is_removal(&self) -> bool {
        self.mark == Mark::Removed
    }

    /// Whether it has ended at `now_ms`, in milliseconds since 1970.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.end_ms().is_some_and(|end_ms| end_ms <= now_ms)
    }

    /// When it ends.
    pub fn end_ms(&self) -> Option<u64> {
        let a_day_later = self.version / 1_000 + REMEMBERED_MS;
        let forgotten = self.is_removal().then_some(a_day_later);
        self.until_ms.into_iter().chain(forgotten).min()
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_removal_is_remembered_for_a_day_and_not_after_the_overrides_end() {
        let mut removed = read(r#"{"unlimited":true}"#).unwrap();
        (removed.version, removed.mark) = (1_000_000, Mark::Removed);
        assert_eq!(removed.end_ms(), Some(REMEMBERED_MS + 1_000));
        removed.until_ms = Some(5_000);
        assert_eq!(removed.end_ms(), Some(5_000));
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
}
