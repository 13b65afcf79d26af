//! What has happened to this sidecar, for the engineer on call: whether the store answers and since when, and the
//! newest events. Bounded. Times are milliseconds since 1970; they are shown to people and decide nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failures::FailureLog;

/// Events that are kept.
const CAPACITY: usize = 50;

/// An outage that begins this soon after another counts as the same one: a flapping store must not push all other
/// events out.
const SAME_OUTAGE_MS: u64 = 10_000;

/// An event that is later than now by no more than this has happened since now was read; otherwise the clock was set back.
const OUT_OF_ORDER_MS: u64 = 1_000;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Grows by one with each event of this process.
    pub number: u64,
    /// When it happened, or first happened.
    pub at_ms: u64,
    /// What it is about.
    pub kind: EventKind,
    /// More about it; may be empty.
    pub detail: String,
    /// How often it happened in a row, at least 1.
    pub times: u32,
    /// The clock has been set back since, and `at_ms` is the time of that step: it happened earlier.
    pub before_step: bool,
}

/// Whether the store answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// When the policy in force was loaded.
    policy_since_ms: u64,
    events: VecDeque<Event>,
    last_number: u64,
}

impl EventLog {
    /// Records that the sidecar has started, with its first policy.
    pub fn started(&self, now_ms: u64, version: &str) {
        let mut state = self.state();
        state.policy_since_ms = now_ms;
        state.add(now_ms, EventKind::Started, version.to_owned());
    }

    /// Records that another policy is in force from now on.
    pub fn policy_loaded(&self, now_ms: u64, detail: String) {
        let mut state = self.state();
        state.policy_since_ms = now_ms;
        state.add(now_ms, EventKind::PolicyLoaded, detail);
    }

    /// Records that the policy file was refused.
    pub fn policy_refused(&self, now_ms: u64, why: String) {
        self.state().add(now_ms, EventKind::PolicyRefused, why);
    }

    /// An override was set.
    pub fn override_set(&self, now_ms: u64, detail: String) {
        self.state().add(now_ms, EventKind::OverrideSet, detail);
    }

    /// An override was removed.
    pub fn override_removed(&self, now_ms: u64, detail: String) {
        self.state().add(now_ms, EventKind::OverrideRemoved, detail);
    }

    /// The store has lost overrides, or has old ones again.
    pub fn overrides_lost(&self, now_ms: u64, detail: String) {
        self.state().add(now_ms, EventKind::OverridesLost, detail);
    }

    /// Records that the store has been down since `since_ms`. The first reason of an outage is kept: it says most.
    /// Whether that is new.
    pub fn store_lost(&self, since_ms: u64, why: impl std::fmt::Display) -> bool {
        let mut state = self.state();
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
        let mut state = self.state();
        if let StoreState::Lost { since_ms, .. } = state.store {
            let seconds = now_ms.saturating_sub(since_ms) as f64 / 1_000.0;
            state.add(
                now_ms,
                EventKind::StoreBack,
                format!("after {seconds:.1} s"),
            );
        }
        state.store = StoreState::Answers;
    }

    /// Leaves no time later than `now_ms`, as after the clock was set back.
    pub fn cap_times(&self, now_ms: u64) {
        let mut state = self.state();
        for event in &mut state.events {
            if event.at_ms > now_ms.saturating_add(OUT_OF_ORDER_MS) {
                event.at_ms = now_ms;
                event.before_step = true;
            }
        }
        state.policy_since_ms = state.policy_since_ms.min(now_ms);
        if let StoreState::Lost { since_ms, .. } = &mut state.store {
            *since_ms = now_ms.min(*since_ms);
        }
    }

    /// Whether the store answers.
    pub fn store(&self) -> StoreState {
        self.state().store.clone()
    }

    /// When the policy in force was loaded.
    pub fn policy_since_ms(&self) -> u64 {
        self.state().policy_since_ms
    }

    /// The events that are kept, the newest first.
    pub fn newest(&self) -> Vec<Event> {
        self.state().events.iter().rev().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What becomes of limits while the store does not answer; `sidecars` is 0 if it never has.
pub const fn without_store(sidecars: u64) -> &'static str {
    if sidecars == 0 {
        "it never has, so this sidecar has no share yet and gives no verdict where `when_store_is_down` is `share`"
    } else {
        "each limit's `when_store_is_down` decides; by default, this sidecar's share is enforced"
    }
}

impl State {
    fn add(&mut self, at_ms: u64, kind: EventKind, detail: String) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
        }
        self.last_number += 1;
        self.events.push_back(Event {
            number: self.last_number,
            at_ms,
            kind,
            detail,
            times: 1,
            before_step: false,
        });
    }

    /// Adds an outage, or continues the one that has only just ended.
    fn add_outage(&mut self, at_ms: u64, why: String) {
        let ended = self.events.pop_back_if(|newest| {
            newest.kind == EventKind::StoreBack
                && !newest.before_step
                && at_ms.abs_diff(newest.at_ms) < SAME_OUTAGE_MS
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

    use EventKind::{Started, StoreBack, StoreLost};

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
        events.started(0, "1.0.0");
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
            events.policy_loaded(now + 600, "epoch 2".to_owned());
        }
        assert_eq!(events.newest().len(), 6);
    }

    #[test]
    fn outages_before_and_after_a_step_back_of_the_clock_are_two() {
        for noticed in [false, true] {
            let events = EventLog::default();
            events.store_lost(3_600_000, "no answer");
            events.store_answered(3_601_000);
            if noticed {
                events.cap_times(1_799_000);
            }
            events.store_lost(1_800_000, "refused");
            let two = [(StoreLost, 1), (StoreBack, 1), (StoreLost, 1)];
            assert_eq!(kinds(&events), two, "noticed: {noticed}");
        }
    }

    #[test]
    fn after_a_step_back_of_the_clock_nothing_lies_in_the_future() {
        let events = EventLog::default();
        events.started(1_000, "1.0.0");
        events.policy_loaded(50_000, "epoch 2".to_owned());
        events.store_lost(51_000, "no answer");
        events.cap_times(20_000);
        let newest = events.newest().into_iter();
        let at: Vec<_> = newest
            .map(|event| (event.at_ms, event.before_step))
            .collect();
        assert_eq!(at, [(20_000, true), (20_000, true), (1_000, false)]);
        assert_eq!(events.policy_since_ms(), 20_000);
        assert_eq!(events.store(), lost(20_000, "no answer"));
        // Read a little earlier than the time of the newest event, as happens between threads.
        events.store_answered(25_000);
        events.cap_times(24_990);
        let newest = events.newest().swap_remove(0);
        assert_eq!((newest.at_ms, newest.before_step), (25_000, false));
        assert_eq!(newest.detail, "after 5.0 s");
    }

    #[test]
    fn the_oldest_events_are_dropped_and_numbers_go_on() {
        let events = EventLog::default();
        for epoch in 0..1_000 {
            events.policy_loaded(epoch, format!("epoch {epoch}"));
        }
        let newest = events.newest();
        assert_eq!(newest.len(), CAPACITY);
        assert_eq!(newest[0].number, 1_000);
        assert_eq!(newest[0].detail, "epoch 999");
    }
}
