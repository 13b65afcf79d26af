//! Whether this sidecar should be sent requests. It answers from what is known already: a probe must not wait for a
//! store that hangs.
//!
//! The store is told of and does not count by default. One Redis is behind all sidecars: if they became unready with
//! it, all pods would be taken out of service at once, and no rule's `when_unavailable` could decide any more.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;

use super::phase::Phase;
use crate::clock;
use crate::decide::Service;
use crate::telemetry::events::Store;

/// What `/readyz` goes by.
#[derive(Clone, Debug)]
pub(super) struct Readiness {
    pub phases: watch::Receiver<Phase>,
    /// A sidecar whose store does not answer is unready.
    pub needs_store: bool,
}

impl Readiness {
    pub fn answer(&self, service: &Service) -> Response {
        let store = service.incidents.store();
        let phase = *self.phases.borrow();
        let epoch = service.live.current().number;
        let ready = is_ready(phase, &store, self.needs_store);
        let mut text = format!(
            "{}: policy epoch {epoch}, {}\n",
            if ready { "ready" } else { "not ready" },
            told(&store, clock::unix_ms())
        );
        if phase > Phase::Serving {
            text += "draining: this sidecar is about to end\n";
        }
        // A broken file does not make a sidecar unready: it decides by the policy before.
        if let Some(why) = service.live.source.refusal() {
            text += &format!("the policy file is refused: {why}\n");
        }
        let status = if ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        (status, text).into_response()
    }
}

/// A sidecar that answers at all has a policy and listens for decisions.
fn is_ready(phase: Phase, store: &Store, needs_store: bool) -> bool {
    phase == Phase::Serving && (!needs_store || *store == Store::Answers)
}

fn told(store: &Store, now_ms: u64) -> String {
    match store {
        Store::Unasked => "the store has not been asked yet".to_owned(),
        Store::Answers => "the store answers".to_owned(),
        Store::Lost { since_ms, why } => {
            let seconds = now_ms.saturating_sub(*since_ms) / 1_000;
            format!("the store does not answer since {seconds} s: {why}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s10_the_store_is_told_of_and_counts_only_where_that_was_asked_for() {
        let lost = Store::Lost {
            since_ms: 1_000,
            why: "refused".to_owned(),
        };
        for (phase, store, needs_store, ready) in [
            (Phase::Serving, &lost, false, true),
            (Phase::Serving, &lost, true, false),
            (Phase::Serving, &Store::Unasked, false, true),
            (Phase::Serving, &Store::Unasked, true, false),
            (Phase::Serving, &Store::Answers, true, true),
            (Phase::Draining, &Store::Answers, false, false),
            (Phase::Stopping, &Store::Answers, false, false),
        ] {
            assert_eq!(
                is_ready(phase, store, needs_store),
                ready,
                "{phase:?} {store:?}"
            );
        }
        assert_eq!(
            told(&lost, 3_999),
            "the store does not answer since 2 s: refused"
        );
    }
}
