//! What setting and removing an override have in common.

use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluicegate_protocol::{self as protocol, OVERRIDES_PATH};

use super::admin::Admin;
use super::{Failure, override_terms};

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
