//! Arguments that name a sidecar's admin port.

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
}
