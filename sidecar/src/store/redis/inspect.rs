//! What a new connection tells of the server that it leads to, before calls use it.

use tokio::join;

use super::connection::Connection;
use super::probe::is_replica;
use crate::store::error::{ConnectionError, StoreError};

/// A server, as far as the user may ask.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// Identifies its process.
    pub run_id: Option<String>,
    /// The policy by which it evicts keys, if it does.
    pub evicts_by: Option<String>,
    /// How many keys it has evicted.
    pub evicted: u64,
}

impl Server {
    fn read(info: &str) -> Self {
        let policy = field(info, "maxmemory_policy").filter(|policy| *policy != "noeviction");
        let evicts_by = policy.filter(|_| field(info, "maxmemory") != Some("0"));
        let evicted = field(info, "evicted_keys").and_then(|keys| keys.parse().ok());
        Self {
            run_id: field(info, "run_id").map(str::to_owned),
            evicts_by: evicts_by.map(str::to_owned),
            evicted: evicted.unwrap_or(0),
        }
    }

    /// Whether both are known, and are not the same.
    pub fn is_other_than(&self, other: &Self) -> bool {
        matches!((&self.run_id, &other.run_id), (Some(one), Some(other)) if one != other)
    }
}

/// Asks a new connection for its server.
///
/// # Errors
/// It is a replica, or the connection is useless.
pub async fn inspect(connection: &Connection) -> Result<Server, StoreError> {
    let info = redis::cmd("INFO");
    let info = connection.ask::<String>(&info, false, connection.patience());
    let (is_replica, info) = join!(is_replica(connection), info);
    if is_replica? {
        return Err(ConnectionError::Replica.into());
    }
    // The user may not ask.
    Ok(info.map_or_else(|_| Server::default(), |info| Server::read(&info)))
}

/// A field of INFO.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
