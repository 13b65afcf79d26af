//! `sluicegate`: arguments, ports, signals and exit codes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluicegate::metrics::Metrics;
use sluicegate::policy::{Policy, StoreAddress};
use sluicegate::service::Service;
use sluicegate::store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

/// sysexits(3): the command was used wrongly, which includes its configuration.
const EX_USAGE: u8 = 64;

/// Rate limits for Envoy that are exact.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decide for the Envoy beside this process, and for anyone with HTTP.
    Serve {
        /// The policy (YAML): limits by name, and where the state is kept.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        /// Where decisions are asked for.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9180")]
        listen: SocketAddr,
        /// Where /metrics, /healthz and /readyz are.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9181")]
        admin_listen: SocketAddr,
        /// Used instead of the policy's `store`: `memory` or a Redis URL. The environment keeps a password out of files.
        #[arg(
            long,
            value_name = "STORE",
            env = "SLUICEGATE_STORE",
            hide_env_values = true
        )]
        store: Option<StoreAddress>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let Command::Serve {
        policy,
        listen,
        admin_listen,
        store,
    } = Arguments::parse().command;
    match serve(policy, listen, admin_listen, store).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("sluicegate: {}", failure.message);
            ExitCode::from(failure.status)
        }
    }
}

/// What is said before the process ends, and with which status.
struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// The command or its configuration is wrong: trying again will not help.
    fn usage(error: impl std::fmt::Display) -> Self {
        Self {
            message: error.to_string(),
            status: EX_USAGE,
        }
    }

    /// The system did not allow it.
    fn system(error: impl std::fmt::Display) -> Self {
        Self {
            message: error.to_string(),
            status: 1,
        }
    }
}

async fn serve(
    policy: PathBuf,
    listen: SocketAddr,
    admin_listen: SocketAddr,
    store: Option<StoreAddress>,
) -> Result<(), Failure> {
    let policy = Policy::load(&policy).map_err(Failure::usage)?;
    let store = Store::open(store.as_ref().unwrap_or(&policy.store)).map_err(Failure::usage)?;
    let service = Service::new(policy, store, Metrics::new().map_err(Failure::system)?);
    let decisions = bind("--listen", listen).await?;
    let admin = bind("--admin-listen", admin_listen).await?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::system)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::system)?;
    info!(%listen, %admin_listen, "serving");
    let shutdown = async {
        tokio::select! {
            _ = terminate.recv() => {},
            _ = interrupt.recv() => {},
        }
        info!("stopping: requests under way are finished");
    };
    sluicegate::server::run(service, decisions, admin, shutdown)
        .await
        .map_err(Failure::system)
}

async fn bind(argument: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::system(format!(
            "{argument} {address}: {error}; choose another address"
        ))
    })
}
