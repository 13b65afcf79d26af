//! Arguments of `serve` that are about its listeners, and what follows from them.

use std::time::Duration;

use clap::builder::FalseyValueParser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluicegate::server::listen::{Address, Listener};
use sluicegate::server::{Access, Listeners, MAX_ADMIN_CONNECTIONS, Settings, Token};
use tracing::warn;

use crate::cli::Failure;

/// File descriptors that are not for connections of clients: the store's, the policy's, the log, the runtime's.
const RESERVED_FILES: u64 = 128;
/// Fewer connections than this are no service.
const FEWEST_CONNECTIONS: usize = 16;

/// Where and how to listen.
#[derive(clap::Args)]
pub struct Listening {
    /// Where decisions are asked for: an address and port, or `unix:` and a path.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9180")]
    pub listen: Address,
    /// Where the live page, /metrics, /healthz, /readyz, /v1/top and /v1/reset are.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9181")]
    pub admin_listen: Address,
    /// Permissions of a Unix socket: whoever may write to it may connect.
    #[arg(long, value_name = "OCTAL", default_value = "0660", value_parser = mode)]
    socket_mode: u32,
    /// Connections for decisions at once; fewer where the limit on open files is lower. Over it, the longest unused one
    /// is closed, first those that never got an answer. The admin port has 128 of its own.
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = connections)]
    max_connections: usize,
    /// Bearer token that all of the admin port but /healthz and /readyz requires. Without it, /v1/reset is refused where
    /// the admin address is not loopback, and the rest is open.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SLUICEGATE_ADMIN_TOKEN",
        hide_env_values = true
    )]
    admin_token: Option<String>,
    /// Leave /metrics open beside an admin token.
    #[arg(long, env = "SLUICEGATE_OPEN_METRICS", value_parser = FalseyValueParser::new())]
    open_metrics: bool,
    /// A name by which the admin port may be called, besides localhost and addresses of loopback: any other Host is
    /// refused where the admin address is loopback, and where such a name is given. Can be given several times.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Let /readyz say 503 while the store does not answer. With one store behind all sidecars they all become unready
    /// at once.
    #[arg(long)]
    ready_needs_store: bool,
    /// How long requests are still served after SIGTERM, while /readyz says 503. SIGINT (Ctrl-C) skips it; a second
    /// signal ends at once.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = humantime::parse_duration)]
    drain: Duration,
    /// How long requests under way may take to finish after the drain.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = humantime::parse_duration)]
    shutdown_timeout: Duration,
}

impl Listening {
    /// Begins to listen.
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

    /// How to serve.
    pub fn settings(self) -> Result<Settings, Failure> {
        let mut access = Access::to(&self.admin_listen, self.allow_host);
        if let Some(token) = self.admin_token {
            let token = Token::new(token);
            access.token = Some(token.ok_or_else(|| Failure::usage("the admin token is empty"))?);
        }
        access.open_metrics = self.open_metrics;
        let max_connections = self.max_connections.min(room_for_connections());
        if max_connections < self.max_connections {
            warn!(
                "{max_connections} connections at once instead of {}: the limit on open files (ulimit -n) leaves no more",
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

/// How many connections for decisions the limit on open files leaves, after it was raised as far as it may be. The
/// lower of its two values is there for programs that keep descriptors in a bit set of 1,024.
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

/// Of so many descriptors; without a limit, any number.
fn room(files: Option<u64>) -> usize {
    let Some(files) = files else {
        return usize::MAX;
    };
    let admin = u64::try_from(MAX_ADMIN_CONNECTIONS).unwrap_or(u64::MAX);
    let left = files.saturating_sub(RESERVED_FILES).saturating_sub(admin);
    usize::try_from(left)
        .unwrap_or(usize::MAX)
        .max(FEWEST_CONNECTIONS)
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("permissions are three octal digits, such as 0660".to_owned()),
    }
}

fn connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number >= FEWEST_CONNECTIONS => Ok(number),
        _ => Err(format!("a number from {FEWEST_CONNECTIONS} on")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s11_connections_leave_descriptors_for_everything_else() {
        assert_eq!(room(Some(1_024)), 768);
        assert_eq!(room(Some(64)), FEWEST_CONNECTIONS);
        assert_eq!(room(None), usize::MAX);
    }

    #[test]
    fn s20_a_mode_is_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("777"), Ok(0o777));
        for wrong in ["", "8", "1777", "rw"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }
}
