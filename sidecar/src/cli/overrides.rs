//! `sluicegate override`: gives single keys another quota, no limit or a block, on running sidecars.

use clap::Subcommand;
use reqwest::Method;
use sluicegate_protocol::{OVERRIDES_PATH, OverrideWasRemoved, RemoveOverride};

use super::Failure;
use super::admin::Admin;
use super::override_list::List;
use super::override_set::Set;
use super::override_terms::Change;
use super::stdout::print;

/// Arguments of `override`.
#[derive(Subcommand)]
#[command(
    after_help = "Example:\n  sluicegate override set --limit per-tenant --key acme --unlimited --for 2h --reason INC-7"
)]
pub enum Override {
    /// Give a key of a limit another quota, lift its limit or block it.
    #[command(
        after_help = "Example:\n  sluicegate override set --limit per-tenant --key acme --quota 5000/1m --for 2h --reason INC-7"
    )]
    Set(Set),
    /// List all overrides, in the store and in the policy file.
    #[command(after_help = "Example:\n  sluicegate override list --limit per-tenant")]
    List(List),
    /// Remove an override from the store, so that the policy applies again.
    #[command(after_help = "Example:\n  sluicegate override remove --limit per-tenant --key acme")]
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
            false => "the store has no such override",
        };
        let still = match &answer.in_policy {
            Some(one) => format!("; the policy file has an override for it: {}", one.terms),
            None => String::new(),
        };
        print(&format!("{removed}{still}\n"))
    }
}
