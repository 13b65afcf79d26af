//! `sluicegate override remove`: removes an override from the store.

use reqwest::Method;
use sluicegate_protocol::{OVERRIDES_PATH, OverrideWasRemoved, RemoveOverride};

use super::Failure;
use super::admin::Admin;
use super::checks::LimitSubject;
use super::override_terms::{AllKeys, Author};
use super::stdout::print;

/// Arguments of `override remove`.
#[derive(clap::Args)]
pub struct Remove {
    #[command(flatten)]
    of: LimitSubject,
    #[command(flatten)]
    _all: AllKeys,
    #[command(flatten)]
    author: Author,
    #[command(flatten)]
    admin: Admin,
}

impl Remove {
    pub async fn run(self) -> Result<(), Failure> {
        let (limit, whom) = self.of.whom();
        let remove = RemoveOverride {
            limit,
            whom,
            author: self.author.signed(),
        };
        let client = self.admin.client()?;
        let answer: OverrideWasRemoved =
            client.send(Method::DELETE, OVERRIDES_PATH, &remove).await?;
        let removed = match answer.removed {
            true => "override removed; it takes effect on all sidecars within a second",
            false => "the store has no such override",
        };
        let still = match &answer.in_policy {
            Some(one) => format!("; the policy file has an override for it: {}", one.terms),
            None => String::new(),
        };
        print(&format!("{removed}{still}\n"))
    }
}
