//! What has happened to this sidecar, for the engineer on call: whether the store answers and since when, and the
//! newest events. Bounded. Times are milliseconds since 1970; they are shown to people and decide nothing.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Serialize;

use super::failures::FailureLog;
use crate::lock::lock;

/// Events that are kept.
const CAPACITY: usize = 50;

/// An outage that begins this soon after another counts as the same one: a flapping store must not push all other
/// events out.
const SAME_OUTAGE_MS: u64 = 10_000;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The sidecar has started.
    Started,
    /// A new policy is in force.
    PolicyLoaded,
    /// The policy file cannot be used.
    PolicyRefused,
    /// The store does not answer.
    StoreLost,
    /// It answers again.
    StoreBack,
    /// An override was set here.
    OverrideSet,
    /// An override was removed here.
    OverrideRemoved,
    /// The store has lost overrides, or has old ones again.
    OverridesLost,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When it happened, or first happened.
    pub at_ms: u64,
    /// What it is about.
    pub kind: EventKind,
    /// More about it; may be empty.
    pub detail: String,
    /// How often it happened in a row, at least 1.
    pub times: u32,
}

/// Whether the store answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum StoreState {
    /// No call has been made yet.
    #[default]
    Unasked,
    /// The newest call succeeded.
    Answers,
    /// An outage is under way.
    Lost {
        /// Since when.
        since_ms: u64,
        /// The first reason.
        why: String,
    },
}

/// The events and the store's state; shared by the callers of the store and the readers.
#[derive(Debug, Default)]
pub struct EventLog {
    state: Mutex<State>,
    /// Logs failed store calls.
    pub log: FailureLog,
}

#[derive(Debug, Default)]
struct State {
    store: StoreState,
    events: VecDeque<Event>,
}

impl EventLog {
    /// Records an event that is not about the store.
    pub fn add(&self, now_ms: u64, kind: EventKind, detail: String) {
        lock(&self.state).add(now_ms, kind, detail);
    }

    /// Records that the store has been down since `since_ms`. The first reason of an outage is kept: it says most.
    /// Whether that is new.
    pub fn store_lost(&self, since_ms: u64, why: impl std::fmt::Display) -> bool {
        let mut state = lock(&self.state);
        if matches!(state.store, StoreState::Lost { .. }) {
            return false;
        }
        let why = why.to_string();
        state.store = StoreState::Lost {
            since_ms,
            why: why.clone(),
        };
        state.add_outage(since_ms, why);
        true
    }

    /// Records that the store is up.
    pub fn store_answered(&self, now_ms: u64) {
        let mut state = lock(&self.state);
        if let StoreState::Lost { since_ms, .. } = state.store {
            let seconds = now_ms.saturating_sub(since_ms) as f64 / 1_000.0;
            let detail = format!("after {seconds:.1} s");
            state.add(now_ms, EventKind::StoreBack, detail);
        }
        state.store = StoreState::Answers;
    }

    /// Whether the store answers.
    pub fn store(&self) -> StoreState {
        lock(&self.state).store.clone()
    }

    /// The events that are kept, the newest first.
    pub fn newest(&self) -> Vec<Event> {
        lock(&self.state).events.iter().rev().cloned().collect()
    }
}

/// How limits are decided while the store does not answer; `sidecars` is 0 if their number is not known.
pub const fn without_store(sidecars: u64) -> &'static str {
    if sidecars == 0 {
        "how many sidecars there are is not known: this sidecar has no share yet and gives no verdict where `when_store_is_down` is `share`"
    } else {
        "each limit's `when_store_is_down` decides; by default, this sidecar's share is enforced"
    }
}

impl State {
    fn add(&mut self, at_ms: u64, kind: EventKind, detail: String) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            at_ms,
            kind,
            detail,
            times: 1,
        });
    }

    /// Adds an outage, or continues the one that has only just ended.
    fn add_outage(&mut self, at_ms: u64, why: String) {
        let ended = self.events.pop_back_if(|newest| {
            newest.kind == EventKind::StoreBack && at_ms.abs_diff(newest.at_ms) < SAME_OUTAGE_MS
        });
        match self.events.back_mut() {
            Some(lost) if ended.is_some() && lost.kind == EventKind::StoreLost => lost.times += 1,
            _ => {
                // The start of the outage that ended is no longer kept, so its end stays as it was.
                self.events.extend(ended);
                self.add(at_ms, EventKind::StoreLost, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(events: &EventLog) -> Vec<(EventKind, u32)> {
        let newest = events.newest().into_iter();
        newest.map(|event| (event.kind, event.times)).collect()
    }

    use EventKind::{PolicyLoaded, Started, StoreBack, StoreLost};

    fn lost(since_ms: u64, why: &str) -> StoreState {
        let why = why.to_owned();
        StoreState::Lost { since_ms, why }
    }

    #[test]
    fn an_outage_is_recorded_once_with_its_first_reason() {
        let events = EventLog::default();
        assert_eq!(events.store(), StoreState::Unasked);
        events.store_answered(1_000);
        assert!(events.newest().is_empty(), "there was no outage");
        events.store_lost(2_000, "refused");
        events.store_lost(3_000, "no answer");
        assert_eq!(events.store(), lost(2_000, "refused"));
        events.store_answered(6_500);
        assert_eq!(events.store(), StoreState::Answers);
        let newest = events.newest().into_iter();
        let shown = newest.map(|event| (event.at_ms, event.kind, event.detail));
        let back = (6_500, StoreBack, "after 4.5 s".to_owned());
        let lost = (2_000, StoreLost, "refused".to_owned());
        assert!(shown.eq([back, lost]));
    }

    #[test]
    fn a_flapping_store_is_one_outage_until_it_has_been_up_for_a_while() {
        let events = EventLog::default();
        events.add(0, Started, "1.0.0".to_owned());
        for turn in 0..100 {
            let now = 1_000 * turn;
            events.store_lost(now, "no answer");
            events.store_answered(now + 500);
        }
        let one_outage = [(StoreBack, 1), (StoreLost, 100), (Started, 1)];
        assert_eq!(kinds(&events), one_outage);
        let later = 99_500 + SAME_OUTAGE_MS;
        events.store_lost(later, "no answer");
        assert_eq!(kinds(&events)[0], (StoreLost, 1));
        assert_eq!(events.newest().len(), 4);
    }

    #[test]
    fn an_event_between_two_outages_keeps_them_apart() {
        let events = EventLog::default();
        for now in [0, 2_000] {
            events.store_lost(now, "no answer");
            events.store_answered(now + 500);
            events.add(now + 600, PolicyLoaded, "epoch 2".to_owned());
        }
        assert_eq!(events.newest().len(), 6);
    }

    #[test]
    fn the_oldest_events_are_dropped() {
        let events = EventLog::default();
        for epoch in 0..1_000 {
            events.add(epoch, PolicyLoaded, format!("epoch {epoch}"));
        }
        let newest = events.newest();
        assert_eq!(newest.len(), CAPACITY);
        assert_eq!(newest[0].detail, "epoch 999");
    }
}
