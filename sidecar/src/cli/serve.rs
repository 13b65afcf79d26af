//! `sluicegate serve`: sets up ports, signals and the log.

mod listening;
mod signals;

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::RangedU64ValueParser;
use sd_notify::NotifyState;
use sluicegate::decide::{PolicyHandle, Service};
use sluicegate::policy::StoreAddress;
use sluicegate::server::Stop;
use sluicegate::store::Store;
use sluicegate::telemetry::log;
use sluicegate::telemetry::metrics::Metrics;
use sluicegate::telemetry::traces::Traces;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tracing::{error, info, warn};

use super::Failure;
use super::direct::store_address;
use listening::Listening;
use signals::Signals;

/// Arguments of `serve`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate serve --policy policy.yaml --listen 127.0.0.1:9180\n\nMore:\n  docs/sidecar.md"
)]
pub struct Serve {
    /// The policy (YAML), with the limits and the address of the store.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// A folder in which the last good policy is kept, for a start with a broken file, and earlier ones, for filters with their rules.
    // systemd's `StateDirectory=` sets the variable.
    #[arg(long, value_name = "FOLDER", env = "STATE_DIRECTORY")]
    state_dir: Option<PathBuf>,
    #[command(flatten)]
    listening: Listening,
    /// Overrides the policy's `store`: `memory` or a Redis URL. The environment variable keeps a password out of files.
    // Parsed here and not by clap, whose error would show the value.
    #[arg(
        long,
        value_name = "STORE",
        env = "SLUICEGATE_STORE",
        hide_env_values = true
    )]
    store: Option<String>,
    /// Threads that decide. One is the cheapest, and enough for an Envoy. The admin port and changed policies have another.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_024), allow_negative_numbers = true)]
    threads: usize,
    /// Format of the log on standard error. RUST_LOG sets the log level.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        env = "SLUICEGATE_LOG_FORMAT",
        default_value = "text"
    )]
    log_format: log::Format,
}

impl Serve {
    /// Threads that decide.
    pub const fn threads(&self) -> usize {
        self.threads
    }

    pub async fn run(self) -> Result<(), Failure> {
        let filter = std::env::var_os(log::FILTER).unwrap_or_default();
        let _log =
            log::start(self.log_format, &filter.to_string_lossy()).map_err(Failure::usage)?;
        // Before a port is open: a supervisor that sees the port may send a signal, which ends a process that does not expect it.
        let signals = Signals::new().map_err(Failure::system)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(Failure::system)?;
        let metrics = Metrics::new().map_err(Failure::system)?;
        let handle = PolicyHandle::load(&self.policy, self.state_dir.as_deref(), &metrics)
            .map_err(Failure::usage)?;
        if let Some(why) = handle.source.refusal() {
            error!("{why}; the last good policy is in force");
        }
        let policy = &handle.current().policy;
        let store = store_address(policy, self.store.as_deref())?;
        let is_alone = matches!(store, StoreAddress::Memory);
        let store = Store::open(&store, policy.store_timeout, policy.memory_limit);
        let mut service = Service::new(handle, store, metrics);
        service.traces = Traces::from_environment().map_err(Failure::usage)?;
        let traces = service.traces.clone();
        let service = Arc::new(service);
        let listeners = self.listening.bind().await?;
        let settings = self.listening.settings()?;
        let reread = Arc::new(Notify::new());
        let hung_up = Arc::clone(&reread);
        tokio::spawn(async move {
            while hangup.recv().await.is_some() {
                // If the file has not changed, nothing else says that the signal came.
                info!("SIGHUP: reading the policy file");
                hung_up.notify_one();
            }
        });
        let (listen, admin_listen) = (&self.listening.listen, &self.listening.admin_listen);
        info!(%listen, %admin_listen, sidecar = service.number(), "serving");
        if is_alone {
            warn!(
                "the counts are in this process's memory: no other sidecar sees them, and a restart forgets them; to share \
                 them, set `store` in the policy, or SLUICEGATE_STORE, to the URL of a Redis"
            );
        }
        // For `Type=notify` of a systemd unit; without systemd this does nothing. Both ports accept connections already.
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            warn!("cannot tell systemd that the sidecar serves: {error}");
        }
        let (first, stop) = oneshot::channel();
        let stop = async { stop.await.unwrap_or(Stop::WithoutDrain) };
        let ended = tokio::select! {
            () = sluicegate::server::run(service, listeners, settings, reread, stop) => Ok(()),
            () = signals.twice(first) => Err(Failure::system(
                "a second signal: requests in progress were aborted",
            )),
        };
        if ended.is_ok() {
            // `shutdown` blocks on a thread.
            let _ = tokio::task::spawn_blocking(move || traces.shutdown()).await;
        }
        ended
    }
}
