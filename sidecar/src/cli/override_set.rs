//! `sluicegate override set`: sets an override in the store.

use std::time::Duration;

use clap::ArgGroup;
use reqwest::Method;
use sluicegate_protocol::{OverrideTerms, OverrideWasSet, SetOverride};

use super::Failure;
use super::admin::Admin;
use super::override_terms::{Quota, end_of, lasts, with_quotas};
use super::overrides::{self, Author, Subject};
use super::stdout::print;

/// Arguments of `override set`.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("allowance").required(true).args(["quota", "unlimited", "blocked"]))]
pub struct Set {
    #[command(flatten)]
    subject: Subject,
    /// The new quota. For a limit with several windows, name the window: `500/1m`. Can be given several times.
    #[arg(long, value_name = "UNITS[/WINDOW]")]
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
    #[arg(long = "for", id = "lasts", value_name = "DURATION", value_parser = lasts)]
    lasts: Option<Duration>,
    #[command(flatten)]
    author: Author,
    #[command(flatten)]
    admin: Admin,
}

impl Set {
    pub async fn run(self) -> Result<(), Failure> {
        let terms = OverrideTerms {
            unlimited: self.unlimited,
            blocked: self.blocked,
            until: self.until.or_else(|| self.lasts.map(end_of)),
            by: self.author.by(),
            reason: self.author.reason,
            ..OverrideTerms::default()
        };
        let terms = with_quotas(terms, &self.quota, self.burst).map_err(Failure::usage)?;
        let Subject { limit, key } = self.subject;
        let set = SetOverride { limit, key, terms };
        let answer: OverrideWasSet = overrides::change(&self.admin, Method::PUT, &set).await?;
        let now = &answer.now;
        let until = match &now.terms.until {
            Some(until) => format!("until {until}"),
            None => "until it is removed".to_owned(),
        };
        let replaced = if answer.replaced {
            ", replacing an earlier override"
        } else {
            ""
        };
        print(&format!(
            "limit `{}`, subject {}: {} {until}{replaced}; it takes effect on all sidecars within a second\n",
            now.limit, now.subject, now.terms
        ))
    }
}
