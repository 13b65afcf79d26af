//! `sluicegate override`: gives single keys another quota, no limit or a block, on running sidecars.

use clap::Subcommand;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluicegate_protocol::{self as protocol, OVERRIDES_PATH};

use super::admin::Admin;
use super::override_list::List;
use super::override_remove::Remove;
use super::override_set::Set;
use super::{Failure, override_terms};

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

/// Sets an override (PUT) or removes it (DELETE).
pub async fn change<T: DeserializeOwned>(
    admin: &Admin,
    method: Method,
    one: &impl Serialize,
) -> Result<T, Failure> {
    let client = admin.client()?;
    client.read(&client.send_json(method, OVERRIDES_PATH, one).await?)
}

/// All keys of the limit, in place of one.
#[derive(clap::Args)]
pub struct AllKeys {
    /// All keys of the limit, with `--unlimited`: the limit denies nobody, except keys that are blocked.
    #[arg(long, group = "whom")]
    all_keys: bool,
}

/// Author and reason of a change, for the list and the audit log.
#[derive(clap::Args)]
pub struct Author {
    /// The reason, in one line. Clients never see it.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The author of the change; the default is the user and host that run this command.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Author {
    /// With the user and host if `--by` is not given.
    pub fn signed(self) -> protocol::Author {
        protocol::Author {
            reason: self.reason,
            by: Some(self.by.unwrap_or_else(override_terms::user_at_host)),
        }
    }
}
