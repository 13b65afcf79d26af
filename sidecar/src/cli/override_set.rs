//! `sluicegate override set`: sets an override in the store.

use clap::ArgGroup;
use reqwest::Method;
use sluicegate::policy::consumer_of;
use sluicegate_protocol::{
    Author, OVERRIDES_PATH, OverrideState, OverrideTerms, OverrideWasSet, SetOverride, Whom,
};

use super::Failure;
use super::admin::Admin;
use super::override_terms::{Change, Quota, end_of, quota, with_quotas};
use super::stdout::print;

const BY_DIGITS: &str = "a key with a header, cookie, query or path component in plain text is not matched by its digits, since a client can choose it\n";
const NO_RULE: &str = "warning: no rule of the policy makes this key: `sluicegate explain` prints the key of a request\n";
const UNFIT: &str = "warning: the policy has nobody of this name: it acts only if somebody asks for it all the same\n";
const COUNTED: &str = "units are counted for this key now\n";
const NOT_COUNTED: &str = "nothing is counted for this key now: if its requests are limited, they have another key (headers, cookies and query parameters are hashed in keys); `--subject` takes the digits that `sluicegate top` and Envoy's access log show, and `sluicegate explain` prints the key of a request\n";

/// Arguments of `override set`.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("allowance").required(true).args(["quota", "unlimited", "blocked"]))]
pub struct Set {
    #[command(flatten)]
    change: Change,
    /// The new quota. For a limit with several windows, name the window: `500/1m`. Can be given several times.
    #[arg(long, value_name = "UNITS[/WINDOW]", value_parser = quota, allow_negative_numbers = true)]
    quota: Vec<Quota>,
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
        let terms = with_quotas(terms, &self.quota, self.burst).map_err(Failure::usage)?;
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
        let whom = match (consumer, &now.subject) {
            (Some(consumer), _) => format!("consumer {consumer}"),
            (None, Some(digits)) => format!("subject {digits}"),
            (None, None) => "all keys".to_owned(),
        };
        let hint = match (&set.whom, answer.counted) {
            _ if now.state == OverrideState::Unfit => UNFIT,
            (_, Some(true)) if consumer.is_some() => COUNTED,
            _ if consumer.is_some() => "",
            (Whom::Subject(_), Some(_)) => BY_DIGITS,
            (Whom::Subject(_), None) => {
                &format!("this sidecar has not seen its key lately\n{BY_DIGITS}")
            }
            _ if answer.no_rule => NO_RULE,
            (_, Some(true)) => COUNTED,
            (_, Some(false)) => NOT_COUNTED,
            (_, None) => "",
        };
        print(&format!(
            "limit `{}`, {whom}: {} {until}{replaced}; it takes effect on all sidecars within a second\n{hint}",
            now.limit, now.terms
        ))
    }
}
