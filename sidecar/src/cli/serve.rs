//! `sluicegate serve`: ports, signals and the log.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use sluicegate::decide::Live;
use sluicegate::decide::Service;
use sluicegate::server::Access;
use sluicegate::server::listen::{Address, Listener};
use sluicegate::store::Store;
use sluicegate::telemetry::metrics::Metrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tracing::info;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::Failure;

/// Arguments of `serve`.
#[derive(clap::Args)]
pub struct Serve {
    /// The policy (YAML): limits by name, and where the state is kept.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Where decisions are asked for: an address and port, or `unix:` and a path.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9180")]
    listen: Address,
    /// Where the live page, /metrics, /healthz, /readyz, /v1/top and /v1/reset are.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9181")]
    admin_listen: Address,
    /// Used instead of the policy's `store`: `memory` or a Redis URL. The environment keeps a password out of files.
    // Parsed here and not by clap, whose error would show the value.
    #[arg(
        long,
        value_name = "STORE",
        env = "SLUICEGATE_STORE",
        hide_env_values = true
    )]
    store: Option<String>,
    /// What /v1/reset wants to be shown where the admin address is not loopback.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "SLUICEGATE_ADMIN_TOKEN",
        hide_env_values = true
    )]
    admin_token: Option<String>,
}

impl Serve {
    pub async fn run(self) -> Result<(), Failure> {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .finish()
            .with(
                Targets::new()
                    .with_default(LevelFilter::INFO)
                    // It logs Redis's answers, and one of them repeats the password. We tell errors ourselves.
                    .with_target("redis", LevelFilter::OFF),
            )
            .init();
        let metrics = Metrics::new().map_err(Failure::system)?;
        let live = Live::load(&self.policy, &metrics).map_err(Failure::usage)?;
        let policy = &live.current().policy;
        let given = self.store.as_ref().map(|text| policy.store.with_url(text));
        let given = given
            .transpose()
            .map_err(|why| Failure::usage(format!("`--store` or SLUICEGATE_STORE is {why}")))?;
        let store = given.as_ref().unwrap_or(&policy.store);
        let store = Store::open(store, policy.store_timeout).with_memory_limit(policy.memory_limit);
        let service = Arc::new(Service::new(live, store, metrics));
        let access = match self.admin_token {
            Some(token) if token.is_empty() => {
                return Err(Failure::usage("the admin token is empty"));
            }
            Some(token) => Access::Token(token),
            None if self.admin_listen.is_local() => Access::Anyone,
            None => Access::Nobody,
        };
        let decisions = bind("--listen", &self.listen).await?;
        let admin = bind("--admin-listen", &self.admin_listen).await?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::system)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::system)?;
        let changed = Arc::new(Notify::new());
        let _watcher = service
            .live
            .source
            .watch(Arc::clone(&changed))
            .map_err(|error| {
                Failure::system(format!(
                    "cannot watch the folder of {}: {error}",
                    self.policy.display()
                ))
            })?;
        let mut hangup = signal(SignalKind::hangup()).map_err(Failure::system)?;
        let hung_up = Arc::clone(&changed);
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                hung_up.notify_one();
            }
        });
        info!(listen = %self.listen, admin_listen = %self.admin_listen, "serving");
        let shutdown = async {
            tokio::select! {
                _ = terminate.recv() => {},
                _ = interrupt.recv() => {},
            }
            info!("stopping: requests under way are finished");
        };
        sluicegate::server::run(service, decisions, admin, access, changed, shutdown)
            .await
            .map_err(Failure::system)
    }
}

async fn bind(argument: &str, address: &Address) -> Result<Listener, Failure> {
    address.bind().await.map_err(|error| {
        Failure::system(format!(
            "{argument} {address}: {error}; choose another address"
        ))
    })
}
