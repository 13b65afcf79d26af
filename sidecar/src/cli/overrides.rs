//! `sluicegate override`: gives single keys another quota, no limit or a block, on running sidecars.

use clap::Subcommand;

use super::Failure;
use super::override_list::List;
use super::override_remove::Remove;
use super::override_set::Set;

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
