//! The phases of a shutdown.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// The current phase, which the listeners and `/readyz` follow. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Requests are served.
    Serving,
    /// Requests are still served, but `/readyz` reports not ready.
    Draining,
    /// No connections are accepted; requests in progress finish.
    Stopping,
}

/// How a sidecar is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After the drain: senders of requests may need time to notice (SIGTERM).
    AfterDrain,
    /// Without a drain: a person is waiting (SIGINT).
    WithoutDrain,
}

/// Moves through the phases once `stop` completes; returns at the last of them.
pub(super) async fn go(
    phase: &watch::Sender<Phase>,
    stop: impl Future<Output = Stop>,
    drain: Duration,
) {
    if stop.await == Stop::AfterDrain && !drain.is_zero() {
        phase.send_replace(Phase::Draining);
        sleep(drain).await;
    }
    phase.send_replace(Phase::Stopping);
}

/// Completes at the last phase.
pub(super) async fn stopping(phases: &mut watch::Receiver<Phase>) {
    // An error means that the sender is gone, which only happens after the last phase.
    let _ = phases.wait_for(|now| *now == Phase::Stopping).await;
}
