//! What has happened to this sidecar, for whoever is called at night: whether the store answers and since when, and
//! the newest events. Bounded; times are milliseconds since 1970, which are shown to people and decide nothing.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failures::FailureLog;

/// Events that are kept.
const CAPACITY: usize = 50;

/// An outage that begins so soon after another is the same one: a store that comes and goes must not push
/// everything else out.
const SAME_OUTAGE_MS: u64 = 10_000;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Grows by one with each event of this process.
    pub number: u64,
    /// When it happened, or first happened.
    pub at_ms: u64,
    /// What it is about.
    pub kind: Kind,
    /// What there is to say besides; may be empty.
    pub detail: String,
    /// How often it happened in a row.
    pub times: u32,
}

/// Whether the store answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Nothing is known of it yet.
    #[default]
    Unasked,
    /// It does.
    Answers,
    /// An outage is under way.
    Lost {
        /// Since when.
        since_ms: u64,
        /// The first reason.
        why: String,
    },
}

/// All that is kept. Shared by whoever calls the store and whoever looks.
#[derive(Debug, Default)]
pub struct Incidents {
    state: Mutex<State>,
    /// What the log is told of it.
    pub log: FailureLog,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    /// When the policy in force was loaded.
    policy_since_ms: u64,
    events: VecDeque<Event>,
    told: u64,
}

impl Incidents {
    /// The sidecar has started, with its first policy.
    pub fn started(&self, now_ms: u64, version: &str) {
        let mut state = self.state();
        state.policy_since_ms = now_ms;
        state.add(now_ms, Kind::Started, version.to_owned());
    }

    /// The policy of `epoch` is in force from now on.
    pub fn policy_loaded(&self, now_ms: u64, epoch: u64) {
        let mut state = self.state();
        state.policy_since_ms = now_ms;
        state.add(now_ms, Kind::PolicyLoaded, format!("epoch {epoch}"));
    }

    /// The policy file cannot be used.
    pub fn policy_refused(&self, now_ms: u64, why: String) {
        self.state().add(now_ms, Kind::PolicyRefused, why);
    }

    /// The store is down, since then; of one outage the first reason is kept, which says most.
    pub fn store_lost(&self, since_ms: u64, why: impl std::fmt::Display) {
        let mut state = self.state();
        if matches!(state.store, Store::Lost { .. }) {
            return;
        }
        let why = why.to_string();
        state.store = Store::Lost {
            since_ms,
            why: why.clone(),
        };
        state.lose(since_ms, why);
    }

    /// The store is up.
    pub fn store_answered(&self, now_ms: u64) {
        let mut state = self.state();
        if let Store::Lost { since_ms, .. } = state.store {
            let seconds = now_ms.saturating_sub(since_ms) as f64 / 1_000.0;
            state.add(now_ms, Kind::StoreBack, format!("after {seconds:.1} s"));
        }
        state.store = Store::Answers;
    }

    /// Whether the store answers.
    pub fn store(&self) -> Store {
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

impl State {
    fn add(&mut self, at_ms: u64, kind: Kind, detail: String) {
        if self.events.len() == CAPACITY {
            self.events.pop_front();
        }
        self.told += 1;
        self.events.push_back(Event {
            number: self.told,
            at_ms,
            kind,
            detail,
            times: 1,
        });
    }

    /// Adds an outage, or goes on with the one that has only just ended.
    fn lose(&mut self, at_ms: u64, why: String) {
        let ended = self.events.pop_back_if(|newest| {
            newest.kind == Kind::StoreBack && at_ms.saturating_sub(newest.at_ms) < SAME_OUTAGE_MS
        });
        match self.events.back_mut() {
            Some(lost) if ended.is_some() && lost.kind == Kind::StoreLost => lost.times += 1,
            _ => {
                // What had begun before the outage that ended is no longer known: the end stays as it was.
                self.events.extend(ended);
                self.add(at_ms, Kind::StoreLost, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(incidents: &Incidents) -> Vec<(Kind, u32)> {
        let newest = incidents.newest();
        newest
            .iter()
            .map(|event| (event.kind, event.times))
            .collect()
    }

    #[test]
    fn s26_an_outage_is_told_once_with_its_first_reason() {
        let incidents = Incidents::default();
        assert_eq!(incidents.store(), Store::Unasked);
        incidents.store_answered(1_000);
        assert!(incidents.newest().is_empty(), "there was none");
        incidents.store_lost(2_000, "refused");
        incidents.store_lost(3_000, "no answer");
        let lost = Store::Lost {
            since_ms: 2_000,
            why: "refused".to_owned(),
        };
        assert_eq!(incidents.store(), lost);
        incidents.store_answered(6_500);
        assert_eq!(incidents.store(), Store::Answers);
        let newest = incidents.newest();
        let told: Vec<_> = newest
            .iter()
            .map(|event| (event.at_ms, event.kind, event.detail.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (6_500, Kind::StoreBack, "after 4.5 s"),
                (2_000, Kind::StoreLost, "refused")
            ]
        );
    }

    #[test]
    fn a_store_that_comes_and_goes_is_one_outage_until_it_has_stayed_for_a_while() {
        let incidents = Incidents::default();
        incidents.started(0, "1.0.0");
        for turn in 0..100 {
            let now = 1_000 * turn;
            incidents.store_lost(now, "no answer");
            incidents.store_answered(now + 500);
        }
        assert_eq!(
            kinds(&incidents),
            [
                (Kind::StoreBack, 1),
                (Kind::StoreLost, 100),
                (Kind::Started, 1)
            ]
        );
        let later = 99_500 + SAME_OUTAGE_MS;
        incidents.store_lost(later, "no answer");
        assert_eq!(kinds(&incidents)[0], (Kind::StoreLost, 1));
        assert_eq!(incidents.newest().len(), 4);
    }

    #[test]
    fn something_between_two_outages_keeps_them_apart() {
        let incidents = Incidents::default();
        for now in [0, 2_000] {
            incidents.store_lost(now, "no answer");
            incidents.store_answered(now + 500);
            incidents.policy_loaded(now + 600, 2);
        }
        assert_eq!(incidents.newest().len(), 6);
    }

    #[test]
    fn the_oldest_events_go_first_and_numbers_go_on() {
        let incidents = Incidents::default();
        for epoch in 0..1_000 {
            incidents.policy_loaded(epoch, epoch);
        }
        let newest = incidents.newest();
        assert_eq!(newest.len(), CAPACITY);
        assert_eq!(
            (newest[0].number, newest[0].detail.as_str()),
            (1_000, "epoch 999")
        );
    }
}
