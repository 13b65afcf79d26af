//! Arguments of `serve` for its listeners, and the settings derived from them.

use std::time::Duration;

use clap::builder::{FalseyValueParser, RangedU64ValueParser};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluicegate::server::listen::{Address, Listener};
use sluicegate::server::{Access, Listeners, MAX_ADMIN_CONNECTIONS, Settings, Token};
use tracing::warn;

use crate::cli::endpoint::{ADMIN, DECISIONS};
use crate::cli::{Failure, admin_token};

/// File descriptors reserved for the store, the policy, the log and the runtime.
const RESERVED_FILES: u64 = 128;
/// Lower bound of `--max-connections`.
const FEWEST_CONNECTIONS: u64 = 16;

/// Addresses and options of the listeners.
#[derive(clap::Args)]
pub struct Listening {
    /// Address of the decision port: an IP address and port, or `unix:` followed by a path.
    #[arg(long, value_name = "ADDRESS", default_value = DECISIONS)]
    pub listen: Address,
    /// Address of the admin port, which serves the live page, /metrics, /healthz, /readyz, /v1/top, /v1/reset and
    /// /v1/overrides.
    #[arg(long, value_name = "ADDRESS", default_value = ADMIN)]
    pub admin_listen: Address,
    /// Permissions of a Unix socket; write permission allows a process to connect.
    #[arg(long, value_name = "OCTAL", default_value = "0660", value_parser = mode)]
    socket_mode: u32,
    /// Maximum number of connections to the decision port; lower if the limit on open files does not allow it. A new
    /// connection above the maximum closes an old one: first one that never got an answer, else the one that has been
    /// idle longest. The admin port has its own maximum of 128.
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = RangedU64ValueParser::<usize>::new().range(FEWEST_CONNECTIONS..), allow_negative_numbers = true)]
    max_connections: usize,
    /// Bearer token required on the admin port, except for /healthz and /readyz. Without it, /v1/reset and
    /// /v1/overrides are refused unless the admin address is loopback or a Unix socket, and the other paths are open.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SLUICEGATE_ADMIN_TOKEN",
        hide_env_values = true
    )]
    admin_token: Option<String>,
    /// Serve /metrics without the admin token.
    #[arg(long, env = "SLUICEGATE_OPEN_METRICS", value_parser = FalseyValueParser::new())]
    open_metrics: bool,
    /// An additional host name for requests to the admin port, besides localhost and loopback addresses. Requests with
    /// any other Host are refused if the admin address is loopback or this option is given. Can be given several times.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Answer /readyz with 503 while the store does not answer. Sidecars that share a store then become unready at the
    /// same time.
    #[arg(long)]
    ready_needs_store: bool,
    /// How long to keep serving requests after SIGTERM, while /readyz answers 503. SIGINT (Ctrl-C) skips the drain; a
    /// second signal stops the sidecar at once.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    drain: Duration,
    /// How long requests in progress may take to finish after the drain.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    shutdown_timeout: Duration,
}

impl Listening {
    /// Binds both listeners.
    pub async fn bind(&self) -> Result<Listeners, Failure> {
        Ok(Listeners {
            decisions: self.bind_to("--listen", &self.listen).await?,
            admin: self.bind_to("--admin-listen", &self.admin_listen).await?,
        })
    }

    async fn bind_to(&self, argument: &str, address: &Address) -> Result<Listener, Failure> {
        address.bind(self.socket_mode).await.map_err(|error| {
            Failure::system(format!(
                "{argument} {address}: {error}; choose another address"
            ))
        })
    }

    /// The settings of the server.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let mut access = Access::to(&self.admin_listen, self.allow_host.clone());
        if let Some(token) = &self.admin_token {
            let token = admin_token::read(token)?.and_then(Token::new);
            access.token = Some(token.ok_or_else(|| Failure::usage("the admin token is empty"))?);
        }
        access.open_metrics = self.open_metrics;
        let max_connections = self.max_connections.min(room_for_connections());
        if max_connections < self.max_connections {
            warn!(
                "the limit on open files (ulimit -n) allows only {max_connections} connections instead of {}",
                self.max_connections
            );
        }
        Ok(Settings {
            access,
            max_connections,
            ready_needs_store: self.ready_needs_store,
            drain: self.drain,
            shutdown_timeout: self.shutdown_timeout,
        })
    }
}

/// How many connections to the decision port the limit on open files allows, after raising the soft limit to the hard
/// limit. The soft limit is only for programs that use select(), which is limited to 1,024 descriptors.
fn room_for_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    room(files)
}

/// Connections for a given number of descriptors; any number of connections if descriptors are not limited.
fn room(files: Option<u64>) -> usize {
    let Some(files) = files else {
        return usize::MAX;
    };
    let admin = u64::try_from(MAX_ADMIN_CONNECTIONS).unwrap_or(u64::MAX);
    let left = files.saturating_sub(RESERVED_FILES).saturating_sub(admin);
    usize::try_from(left.max(FEWEST_CONNECTIONS)).unwrap_or(usize::MAX)
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("expected three octal digits, such as 0660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        assert_eq!(room(Some(1_024)), 768);
        assert_eq!(room(Some(64)), 16);
        assert_eq!(room(None), usize::MAX);
    }

    #[test]
    fn a_mode_is_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("777"), Ok(0o777));
        for wrong in ["", "8", "1777", "rw"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
