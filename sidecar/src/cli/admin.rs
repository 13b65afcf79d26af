//! Arguments that name a sidecar's admin port.

use sluicegate_protocol::{SUBJECTS_PATH, Whom};

use super::client::{Client, Patience};
use super::endpoint::{ADMIN_PORT, Endpoint};
use super::{Failure, admin_token};

/// The admin port of a running sidecar, and how long to wait for it.
#[derive(clap::Args)]
pub struct Admin {
    #[command(flatten)]
    pub port: AdminPort,
    #[command(flatten)]
    pub patience: Patience,
}

/// The admin port of a running sidecar.
#[derive(clap::Args)]
pub struct AdminPort {
    /// The sidecar's admin port: a URL, or `unix:` followed by a path [env: SLUICEGATE_ADMIN] [default:
    /// http://127.0.0.1:9181]
    #[arg(long, value_name = "URL")]
    admin: Option<Endpoint>,
    /// The sidecar's admin token, if it requires one.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SLUICEGATE_ADMIN_TOKEN",
        hide_env_values = true
    )]
    admin_token: Option<String>,
}

impl Admin {
    /// A client for this port.
    pub fn client(&self) -> Result<Client, Failure> {
        self.port.client(&self.patience)
    }
}

impl AdminPort {
    /// A client for this port that waits so long for an answer.
    pub fn client(&self, patience: &Patience) -> Result<Client, Failure> {
        let token = self.admin_token.as_deref().map(admin_token::read);
        let token = token.transpose()?.flatten();
        Client::new(&ADMIN_PORT, self.admin.clone(), token, patience)
    }

    /// The key that has these digits.
    pub async fn key_of(&self, digits: &str, patience: &Patience) -> Result<String, Failure> {
        let client = self.client(patience)?;
        match client.get(&format!("{SUBJECTS_PATH}{digits}")).await? {
            Whom::Key(key) => Ok(key),
            _ => Err(client.not_a_sidecar("it names no key")),
        }
    }
}
