//! `sluicegate override`: gives single keys another quota, no limit or a block, on running sidecars.

use clap::Subcommand;
use reqwest::Method;
use sluicegate_protocol::{OVERRIDES_PATH, OverrideWasRemoved, RemoveOverride};

use super::Failure;
use super::admin::Admin;
use super::checks::LimitSubject;
use super::override_list::List;
use super::override_set::Set;
use super::override_terms::{AllKeys, Author};
use super::stdout::print;

/// Arguments of `override`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate override set --limit per-tenant --key acme --unlimited --for 2h --reason INC-7"
)]
pub struct Override {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
        match self.command {
            Command::Set(set) => set.run().await,
            Command::List(list) => list.run().await,
            Command::Remove(remove) => remove.run().await,
        }
    }
}

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
