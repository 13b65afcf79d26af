//! `sluicegate override`: gives single keys another quota, no limit or a block, on running sidecars.

use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Subcommand};
use reqwest::Method;
use sluicegate::policy::consumer_of;
use sluicegate_protocol::{
    Author, OVERRIDES_PATH, OverrideState, OverrideTerms, OverrideWasRemoved, OverrideWasSet,
    OverrideWindow, RemoveOverride, SetOverride, Whom,
};

use super::Failure;
use super::admin::Admin;
use super::checks::LimitSubject;
use super::override_list::List;
use super::stdout::print;

const BY_DIGITS: &str = "note: digits stand for no key with a header, cookie, query or path component in plain text, since a client can choose that\n";
const NO_RULE: &str = "warning: no rule of the policy makes this key: `sluicegate explain` prints the key of a request\n";
const UNFIT: &str = "warning: the policy has nobody of this name: it acts only if somebody asks for it all the same\n";
const COUNTED: &str = "units are counted for this key now\n";
const NOT_COUNTED: &str = "nothing is counted for this key now: if its requests are limited, they have another key (headers, cookies and query parameters are hashed in keys); `--subject` takes the digits that `sluicegate top` and Envoy's access log show, and `sluicegate explain` prints the key of a request\n";

/// Arguments of `override`.
#[derive(Subcommand)]
#[command(
    after_help = "Example:\n  sluicegate override set --limit per-tenant --subject 7638ef95271f757e859c --unlimited --for 2h --reason INC-7\n\nMore:\n  docs/overrides.md"
)]
pub enum Override {
    /// Give a key of a limit another quota, lift its limit or block it.
    #[command(
        after_help = "Example:\n  sluicegate override set --limit per-tenant --subject 7638ef95271f757e859c --quota 5000/1m --for 2h --reason INC-7\n\nMore:\n  docs/overrides.md"
    )]
    Set(Set),
    /// List all overrides, in the store and in the policy file.
    #[command(
        after_help = "Example:\n  sluicegate override list --limit per-tenant\n\nMore:\n  docs/overrides.md"
    )]
    List(List),
    /// Remove an override from the store, so that the policy applies again.
    #[command(
        after_help = "Example:\n  sluicegate override remove --limit per-tenant --subject 7638ef95271f757e859c\n\nMore:\n  docs/overrides.md"
    )]
    Remove(Remove),
}

impl Override {
    pub async fn run(self) -> Result<(), Failure> {
        match self {
            Self::Set(set) => set.run().await,
            Self::List(list) => list.run().await,
            Self::Remove(remove) => remove.run().await,
        }
    }
}

/// Arguments of `override remove`.
#[derive(clap::Args)]
pub struct Remove {
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    admin: Admin,
}

impl Remove {
    pub async fn run(self) -> Result<(), Failure> {
        let (limit, whom, author) = self.change.signed();
        let remove = RemoveOverride {
            limit,
            whom,
            author,
        };
        let client = self.admin.client()?;
        let answer: OverrideWasRemoved =
            client.send(Method::DELETE, OVERRIDES_PATH, &remove).await?;
        let removed = match answer.removed {
            true => "override removed; it takes effect on all sidecars within a second",
            false => "the store has no such override; `sluicegate override list` shows all",
        };
        let still = match &answer.in_policy {
            Some(one) => format!(
                "; the policy file has an override for it: {}",
                one.allowance()
            ),
            None => String::new(),
        };
        print(&format!("{removed}{still}\n"))
    }
}

/// What is changed; and author and reason, for the list and the audit log.
#[derive(clap::Args)]
struct Change {
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
    fn signed(self) -> (String, Whom, Author) {
        let author = Author {
            reason: self.reason,
            by: Some(self.by.unwrap_or_else(user_at_host)),
        };
        let whom = self.of.whom();
        (self.of.limit, whom, author)
    }
}

/// Arguments of `override set`.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("allowance").required(true).args(["quota", "unlimited", "blocked"]))]
pub struct Set {
    #[command(flatten)]
    change: Change,
    /// The new quota. For a limit with several windows, name the window: `500/1m`. Can be given several times.
    #[arg(long, value_name = "UNITS[/WINDOW]", value_parser = quota, allow_negative_numbers = true)]
    quota: Vec<OverrideWindow>,
    /// The burst of a token bucket; by default, the limit's burst is scaled with the quota.
    #[arg(long, value_name = "UNITS", requires = "quota")]
    burst: Option<u64>,
    /// Admit every request and count nothing.
    #[arg(long)]
    unlimited: bool,
    /// Deny every request.
    #[arg(long)]
    blocked: bool,
    /// When the override ends, in RFC 3339 format: `2026-11-22T03:00:00Z`. By default it has no end.
    #[arg(long, value_name = "TIME", conflicts_with = "lasts")]
    until: Option<String>,
    /// How long the override lasts from now: `2h`.
    #[arg(long = "for", id = "lasts", value_name = "DURATION", value_parser = end_of)]
    lasts: Option<String>,
    /// Set it even if the policy has no such consumer, or the key has in plain text what all rules of the limit hash.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    admin: Admin,
}

impl Set {
    pub async fn run(self) -> Result<(), Failure> {
        let (limit, whom, Author { reason, by }) = self.change.signed();
        let terms = OverrideTerms {
            unlimited: self.unlimited,
            blocked: self.blocked,
            until: self.until.or(self.lasts),
            by,
            reason,
            ..OverrideTerms::default()
        };
        let terms = with_quotas(terms, self.quota, self.burst).map_err(Failure::usage)?;
        let set = SetOverride {
            limit,
            whom,
            terms,
            force: self.force,
        };
        let client = self.admin.client()?;
        let answer: OverrideWasSet = client.send(Method::PUT, OVERRIDES_PATH, &set).await?;
        let now = &answer.now;
        let until = match &now.terms.until {
            Some(until) => format!("until {until}"),
            None => "until it is removed".to_owned(),
        };
        let replaced = match answer.replaced {
            true => ", replacing an earlier override",
            false => "",
        };
        let consumer = now.key.as_deref().and_then(consumer_of);
        let made_of = answer.of.filter(|_| matches!(set.whom, Whom::Subject(_)));
        let made_of = made_of.map_or_else(String::new, |names| format!(" (a key of `{names}`)"));
        let whom = match (consumer, &now.subject) {
            (Some(consumer), _) => format!("consumer {consumer}"),
            (None, Some(digits)) => format!("subject {digits}{made_of}"),
            (None, None) => "all keys".to_owned(),
        };
        let hint = match (&set.whom, answer.counted) {
            _ if now.state == OverrideState::Unfit => UNFIT,
            (_, Some(true)) if consumer.is_some() => COUNTED,
            _ if consumer.is_some() => "",
            (Whom::Subject(_), Some(_)) => BY_DIGITS,
            (Whom::Subject(_), None) => &format!(
                "warning: this sidecar has not seen a key with these digits lately\n{BY_DIGITS}"
            ),
            _ if answer.no_rule => NO_RULE,
            (_, Some(true)) => COUNTED,
            (_, Some(false)) => NOT_COUNTED,
            (_, None) => "",
        };
        print(&format!(
            "limit `{}`, {whom}: {} {until}{replaced}; it takes effect on all sidecars within a second\n{hint}",
            now.limit,
            now.allowance()
        ))
    }
}

/// Parses `UNITS` or `UNITS/WINDOW`; without a window, its name is empty.
///
/// # Errors
/// There are no units; with an example.
fn quota(text: &str) -> Result<OverrideWindow, &'static str> {
    let (units, per) = text.split_once('/').unwrap_or((text, ""));
    let units = units.parse();
    Ok(OverrideWindow {
        quota: units.map_err(|_| "expected units, optionally with a window: 500 or 500/1m")?,
        per: per.to_owned(),
        burst: None,
    })
}

/// Adds quotas and a burst in the form that the sidecar accepts.
///
/// # Errors
/// The arguments cannot be combined; with the remedy.
fn with_quotas(
    mut terms: OverrideTerms,
    mut quotas: Vec<OverrideWindow>,
    burst: Option<u64>,
) -> Result<OverrideTerms, &'static str> {
    if burst.is_some() && quotas.len() != 1 {
        return Err("`--burst` requires exactly one `--quota`");
    }
    quotas.iter_mut().for_each(|window| window.burst = burst);
    match &quotas[..] {
        [one] if one.per.is_empty() => (terms.quota, terms.burst) = (Some(one.quota), burst),
        several if several.iter().any(|one| one.per.is_empty()) => {
            return Err("with several `--quota`, each must name its window: --quota 500/1m");
        }
        _ => terms.windows = quotas,
    }
    Ok(terms)
}

/// Reads how long an override lasts: a duration of at most a hundred years, so that its end has a date. That is returned, in
/// RFC 3339 format and rounded up to a second.
///
/// # Errors
/// It is not such a duration; with the remedy.
fn end_of(text: &str) -> Result<String, String> {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
    let lasts = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if lasts.is_zero() {
        return Err("it would end at once: give a time such as `2h`".to_owned());
    }
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
        let terms = with_quotas(OverrideTerms::default(), quotas?, burst)?;
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
    fn an_override_that_would_end_at_once_is_refused() {
        let why = end_of("0s").unwrap_err();
        assert!(why.contains("`2h`"), "{why}");
        assert!(end_of("1ms").is_ok());
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
