//! Signals that stop a sidecar.

use std::io;

use sluicegate::server::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::info;

/// Handlers of SIGTERM and SIGINT.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system refuses them.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.terminate.recv() => Stop::AfterDrain,
            _ = self.interrupt.recv() => Stop::WithoutDrain,
        }
    }

    /// Sends the kind of stop that the first signal requests; returns on the second signal.
    pub async fn twice(mut self, first: oneshot::Sender<Stop>) {
        let stop = self.next().await;
        let what = match stop {
            Stop::AfterDrain => "draining, then stopping",
            Stop::WithoutDrain => "stopping: finishing requests in progress",
        };
        info!("{what}; a second signal stops the sidecar at once");
        // If the receiver is gone, the sidecar is already stopping.
        let _ = first.send(stop);
        self.next().await;
    }
}
