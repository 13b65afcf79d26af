//! Arguments of `override set` and `override remove`, and the terms of an override that are made of them.

use std::time::{Duration, SystemTime};

use sluicegate_protocol::{Author, OverrideTerms, OverrideWindow, Whom};

use super::checks::LimitSubject;

/// What is changed; and author and reason, for the list and the audit log.
#[derive(clap::Args)]
pub struct Change {
    #[command(flatten)]
    of: LimitSubject,
    /// All keys of the limit, with `--unlimited`: the limit denies nobody, except keys that are blocked.
    #[arg(long, group = "whom")]
    all_keys: bool,
    /// The reason, in one line. Clients never see it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The author of the change; the default is the user and host that run this command.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Change {
    /// Limit, keys and author; with the user and host if `--by` is not given.
    pub fn signed(self) -> (String, Whom, Author) {
        let author = Author {
            reason: self.reason,
            by: Some(self.by.unwrap_or_else(user_at_host)),
        };
        let whom = self.of.whom();
        (self.of.limit, whom, author)
    }
}

/// `--quota`: units, and optionally the window that they apply to.
pub type Quota = (u64, Option<String>);

/// Parses `UNITS` or `UNITS/WINDOW`.
///
/// # Errors
/// There are no units; with an example.
pub fn quota(text: &str) -> Result<Quota, &'static str> {
    let (units, per) = match text.split_once('/') {
        Some((units, per)) => (units, Some(per.to_owned())),
        None => (text, None),
    };
    let units = units.parse();
    let units = units.map_err(|_| "expected units, optionally with a window: 500 or 500/1m")?;
    Ok((units, per))
}

/// Adds quotas and a burst in the form that the sidecar accepts.
///
/// # Errors
/// The arguments cannot be combined; with the remedy.
pub fn with_quotas(
    terms: OverrideTerms,
    quotas: &[Quota],
    burst: Option<u64>,
) -> Result<OverrideTerms, &'static str> {
    if burst.is_some() && quotas.len() != 1 {
        return Err("`--burst` requires exactly one `--quota`");
    }
    if let [(units, None)] = quotas {
        let quota = Some(*units);
        return Ok(OverrideTerms {
            quota,
            burst,
            ..terms
        });
    }
    let windows = quotas.iter().cloned().map(|(quota, per)| {
        let per = per?;
        Some(OverrideWindow { quota, per, burst })
    });
    let windows: Option<_> = windows.collect();
    let windows =
        windows.ok_or("with several `--quota`, each must name its window: --quota 500/1m")?;
    Ok(OverrideTerms { windows, ..terms })
}

/// Reads how long an override lasts: a duration of at most a hundred years, so that its end has a date. That is returned, in
/// RFC 3339 format and rounded up to a second.
///
/// # Errors
/// It is not such a duration; with the remedy.
pub fn end_of(text: &str) -> Result<String, String> {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
    let lasts = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if lasts > LONGEST {
        return Err(
            "longer than a hundred years: an override without `--for` has no end".to_owned(),
        );
    }
    let end = SystemTime::now() + lasts + Duration::from_millis(999);
    Ok(humantime::format_rfc3339_seconds(end).to_string())
}

/// The user and the host that run this command.
fn user_at_host() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    match user {
        Ok(user) => format!("{user}@{host}"),
        Err(_) => format!("uid {}@{host}", rustix::process::getuid().as_raw()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(quotas: &[&str], burst: Option<u64>) -> Result<String, String> {
        let quotas: Result<Vec<_>, _> = quotas.iter().map(|text| quota(text)).collect();
        let terms = with_quotas(OverrideTerms::default(), &quotas?, burst)?;
        Ok(terms.to_string())
    }

    #[test]
    fn an_override_that_lasts_longer_than_dates_do_is_refused() {
        assert!(end_of("2h").is_ok() && end_of("99y").unwrap().contains('T'));
        for wrong in ["8000y", "99999999999y", "soon"] {
            assert!(end_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_quota_names_its_window_where_there_are_several() {
        assert_eq!(terms(&["500"], None).as_deref(), Ok("quota 500"));
        assert_eq!(terms(&["500"], Some(9)).as_deref(), Ok("quota 500 burst 9"));
        let both = terms(&["500/1m", "9/1s"], None);
        assert_eq!(both.as_deref(), Ok("quota 500/1m 9/1s"));
        for (quotas, burst) in [
            (&["many"][..], None),
            (&["5", "6"], None),
            (&["5/1m", "6/1s"], Some(1)),
        ] {
            assert!(terms(quotas, burst).is_err(), "{quotas:?}");
        }
    }
}
