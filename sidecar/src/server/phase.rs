//! How far a sidecar is on its way out.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// What the listeners and `/readyz` go by. It only ever moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Requests are served.
    Serving,
    /// They still are, but `/readyz` says that nobody else should come.
    Draining,
    /// Nobody is let in; requests under way are finished.
    Stopping,
}

/// How a sidecar is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After the drain: whoever sends requests may need time to notice (SIGTERM).
    AfterDrain,
    /// Without a drain: a person waits for it (SIGINT).
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

/// Completes at this phase, or a later one.
pub(super) async fn reached(phases: &mut watch::Receiver<Phase>, phase: Phase) {
    // An error means that the sender is gone, which only happens after the last phase.
    let _ = phases.wait_for(|now| *now >= phase).await;
}
