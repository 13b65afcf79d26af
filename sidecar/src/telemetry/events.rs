//! What has happened to this sidecar, for whoever is called at night: whether the store answers and since when, and
//! the newest events. Bounded; times are milliseconds since 1970, which are shown to people and decide nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::failures::FailureLog;

/// Events that are kept.
const CAPACITY: usize = 50;

/// Calls that fail one after the other before that is an outage: a single one may be a connection that was cut.
const FAILURES_OF_AN_OUTAGE: u32 = 2;

/// After a decision's call failed, a probe that succeeds proves nothing for so long: while Redis answers PING, it may
/// have no memory left, be read-only or be too slow for the deadline. Afterwards nobody asks, and the probe is all there
/// is.
const PROBES_PROVE_NOTHING_MS: u64 = 3_000;

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
    /// Nobody has asked it yet.
    #[default]
    Unasked,
    /// The last call succeeded.
    Answers,
    /// An outage is under way.
    Lost {
        /// When the first call of it failed.
        since_ms: u64,
        /// What the call that made it an outage came to.
        why: String,
    },
}

/// All that is kept. Shared by whoever calls the store and whoever looks.
#[derive(Debug, Default)]
pub struct Incidents {
    state: Mutex<State>,
    /// What the log is told of it.
    pub log: FailureLog,
    /// The store answered the last call: then another that does changes nothing, and need not lock.
    calm: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    /// Calls that have failed since the last that did not, and when the first of them did.
    failures: u32,
    failing_since_ms: u64,
    /// When a decision's call last failed, unless one has succeeded since.
    call_failed_ms: Option<u64>,
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

    /// A call to the store has failed.
    pub fn store_failed(&self, now_ms: u64, error: impl std::fmt::Display) {
        let mut state = self.state();
        state.call_failed_ms = Some(now_ms);
        self.failed(&mut state, now_ms, error);
    }

    fn failed(&self, state: &mut State, now_ms: u64, error: impl std::fmt::Display) {
        self.calm.store(false, Ordering::Relaxed);
        if state.failures == 0 {
            state.failing_since_ms = now_ms;
        }
        state.failures = state.failures.saturating_add(1);
        // Of an outage the first error says most: later ones are those of attempts to connect again.
        let is_lost = matches!(state.store, Store::Lost { .. });
        if is_lost || state.failures < FAILURES_OF_AN_OUTAGE {
            return;
        }
        let (since_ms, why) = (state.failing_since_ms, error.to_string());
        state.store = Store::Lost {
            since_ms,
            why: why.clone(),
        };
        state.lose(since_ms, why);
    }

    /// A probe of the store has failed.
    pub fn probe_failed(&self, now_ms: u64, error: impl std::fmt::Display) {
        self.failed(&mut self.state(), now_ms, error);
    }

    /// A probe of the store has succeeded: an outage is over if no decision fails any more.
    pub fn probe_answered(&self, now_ms: u64) {
        if self.calm.load(Ordering::Relaxed) {
            return;
        }
        let failed_ms = self.state().call_failed_ms;
        let proves = failed_ms.is_none_or(|failed_ms| {
            // A clock that was set back must not keep an outage open.
            failed_ms.abs_diff(now_ms) >= PROBES_PROVE_NOTHING_MS
        });
        if proves {
            self.store_answered(now_ms);
        }
    }

    /// A call to the store has succeeded.
    pub fn store_answered(&self, now_ms: u64) {
        if self.calm.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        self.calm.store(true, Ordering::Relaxed);
        state.failures = 0;
        state.call_failed_ms = None;
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
    fn one_failed_call_is_no_outage_and_two_in_a_row_are_one_since_the_first() {
        let incidents = Incidents::default();
        assert_eq!(incidents.store(), Store::Unasked);
        incidents.store_failed(1_000, "cut");
        incidents.store_answered(1_001);
        incidents.store_failed(2_000, "cut");
        assert_eq!(
            (incidents.store(), incidents.newest()),
            (Store::Answers, vec![])
        );
        incidents.store_failed(2_500, "refused");
        incidents.store_failed(3_000, "no answer");
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
    fn a_store_that_is_away_from_the_start_is_lost() {
        let incidents = Incidents::default();
        incidents.store_failed(5, "refused");
        incidents.store_failed(6, "refused");
        assert!(matches!(incidents.store(), Store::Lost { since_ms: 5, .. }));
    }

    #[test]
    fn a_store_that_comes_and_goes_is_one_outage_until_it_has_stayed_for_a_while() {
        let incidents = Incidents::default();
        incidents.started(0, "1.0.0");
        for turn in 0..100 {
            let now = 1_000 * turn;
            incidents.store_failed(now, "no answer");
            incidents.store_failed(now + 1, "no answer");
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
        incidents.store_failed(later, "no answer");
        incidents.store_failed(later + 1, "no answer");
        assert_eq!(kinds(&incidents)[0], (Kind::StoreLost, 1));
        assert_eq!(incidents.newest().len(), 4);
    }

    #[test]
    fn s26_probes_do_not_end_an_outage_in_which_decisions_go_on_failing() {
        let incidents = Incidents::default();
        // For 8 s each decision fails, and each probe is answered.
        for now in (0..8_000).step_by(100) {
            incidents.store_failed(now, "read-only");
            incidents.probe_answered(now + 50);
        }
        assert_eq!(kinds(&incidents), [(Kind::StoreLost, 1)]);
        incidents.store_answered(8_000);
        assert_eq!(
            kinds(&incidents),
            [(Kind::StoreBack, 1), (Kind::StoreLost, 1)]
        );
    }

    #[test]
    fn s26_a_probe_ends_an_outage_that_only_probes_have_noticed_or_that_nobody_asks_in_any_more() {
        let incidents = Incidents::default();
        incidents.probe_failed(0, "refused");
        incidents.probe_failed(1_000, "refused");
        assert!(matches!(incidents.store(), Store::Lost { since_ms: 0, .. }));
        incidents.probe_answered(2_000);
        assert_eq!(incidents.store(), Store::Answers);
        incidents.store_failed(20_000, "refused");
        incidents.store_failed(20_001, "refused");
        incidents.probe_answered(21_000);
        assert!(matches!(incidents.store(), Store::Lost { .. }));
        incidents.probe_answered(23_001);
        assert_eq!(incidents.store(), Store::Answers);
    }

    #[test]
    fn something_between_two_outages_keeps_them_apart() {
        let incidents = Incidents::default();
        for now in [0, 2_000] {
            incidents.store_failed(now, "no answer");
            incidents.store_failed(now + 1, "no answer");
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
