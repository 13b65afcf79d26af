//! Whether clients should send requests to this sidecar. Answers from the known state: a probe must not wait for a store
//! that hangs.
//!
//! By default the store is reported but does not affect readiness. All sidecars share one Redis: if they became unready
//! with it, all pods would be taken out of service at once, and no rule's `when_unavailable` could apply.

use axum::response::{IntoResponse, Response};
use sluicegate_protocol::{Code, Problem};
use tokio::sync::watch;

use super::phase::Phase;
use super::refusal::Refusal;
use crate::clock;
use crate::decide::Service;
use crate::telemetry::events::{StoreState, without_store};

/// The inputs of `/readyz`.
#[derive(Clone, Debug)]
pub(super) struct Readiness {
    pub phases: watch::Receiver<Phase>,
    /// A sidecar whose store does not answer is unready.
    pub needs_store: bool,
}

impl Readiness {
    pub fn answer(&self, service: &Service) -> Response {
        let store = service.events.store();
        let phase = *self.phases.borrow();
        let epoch = service.policy.current().policy_number;
        let ready = service.has_started() && is_ready(phase, &store, self.needs_store);
        let mut text = format!(
            "{}: sidecar {}, policy epoch {epoch}, {}\n",
            if ready { "ready" } else { "not ready" },
            service.number(),
            describe(&store, service.sidecars(), clock::unix_ms())
        );
        // The first reason says most, and the last one what to do next.
        if let (StoreState::Lost { why, .. }, Some(now)) = (&store, service.store_failure())
            && !why.ends_with(&now.to_string())
        {
            text += &format!("by now: {now}\n");
        }
        if phase > Phase::Serving {
            text += "draining: this sidecar is shutting down\n";
        }
        // A broken file does not make a sidecar unready: the previous policy stays in force.
        if let Some(why) = service.policy.source.refusal() {
            text += &format!("the policy file is refused: {why}\n");
        }
        if service.policy.source.is_last_good() {
            text += "the last good policy, from the state directory, is in force\n";
        }
        let others = service.policy.source.unkept().into_iter();
        for line in others.chain(service.filters_apart()) {
            text += &format!("{line}\n");
        }
        let unknown = service.metrics.unknown_limits();
        if !unknown.is_empty() {
            text +=
                &format!("requests ask for limits that the policy does not have: {unknown:?}\n");
        }
        if ready {
            text.into_response()
        } else {
            let problem = Problem::new(Code::NotReady, text.trim_end());
            Refusal::from(problem).into_response()
        }
    }
}

/// A sidecar that answers at all has a policy and listens for decisions. Whether it makes them, [`Service::has_started`] says.
fn is_ready(phase: Phase, store: &StoreState, needs_store: bool) -> bool {
    phase == Phase::Serving && (!needs_store || *store == StoreState::Answers)
}

fn describe(store: &StoreState, sidecars: u64, now_ms: u64) -> String {
    match store {
        StoreState::Unasked => "the store has not been asked yet".to_owned(),
        StoreState::Answers => "the store answers".to_owned(),
        StoreState::Lost { since_ms, why } => {
            let seconds = now_ms.saturating_sub(*since_ms) / 1_000;
            let without = without_store(sidecars);
            format!("the store has not answered for {seconds} s: {why}; {without}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_told_of_and_counts_only_where_that_was_asked_for() {
        let lost = StoreState::Lost {
            since_ms: 1_000,
            why: "refused".to_owned(),
        };
        for (phase, store, needs_store, ready) in [
            (Phase::Serving, &lost, false, true),
            (Phase::Serving, &lost, true, false),
            (Phase::Serving, &StoreState::Unasked, false, true),
            (Phase::Serving, &StoreState::Unasked, true, false),
            (Phase::Serving, &StoreState::Answers, true, true),
            (Phase::Draining, &StoreState::Answers, false, false),
            (Phase::Stopping, &StoreState::Answers, false, false),
        ] {
            let is = is_ready(phase, store, needs_store);
            assert_eq!(is, ready, "{phase:?} {store:?}");
        }
        for (sidecars, says) in [
            (2, "each limit's `when_store_is_down` decides"),
            (0, "this sidecar has no share yet and gives no verdict"),
        ] {
            let text = describe(&lost, sidecars, 3_999);
            assert!(text.starts_with("the store has not answered for 2 s: refused; "));
            assert!(text.contains(says), "{text}");
            // It may have answered until a moment ago.
            assert!(!text.contains("never"), "{text}");
        }
    }
}
