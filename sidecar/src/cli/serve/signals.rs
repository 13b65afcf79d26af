//! Signals that end a sidecar.

use std::io;

use sluicegate::server::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::info;

/// SIGTERM and SIGINT, heard from now on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Hears them.
    ///
    /// # Errors
    /// The system does not allow it.
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

    /// Sends what the first one asks for; returns with the second.
    pub async fn twice(mut self, first: oneshot::Sender<Stop>) {
        let stop = self.next().await;
        match stop {
            Stop::AfterDrain => info!("draining, then stopping; another signal ends at once"),
            Stop::WithoutDrain => {
                info!("stopping: requests under way are finished; another signal ends at once");
            }
        }
        // If nobody waits for it any more, the sidecar is ending.
        let _ = first.send(stop);
        self.next().await;
    }
}
