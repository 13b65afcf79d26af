//! Arguments that name a sidecar's admin port.

use super::Failure;
use super::client::Client;
use super::endpoint::{ADMIN_PORT, Endpoint};

/// The admin port of a running sidecar.
#[derive(clap::Args)]
pub struct Admin {
    #[arg(long, value_name = "URL", help = ADMIN_PORT.help())]
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
        let endpoint = ADMIN_PORT.endpoint(self.admin.as_ref())?;
        Client::of_admin(endpoint, self.admin_token.clone())
    }
}
