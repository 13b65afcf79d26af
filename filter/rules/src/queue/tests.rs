//! The queue, with events in any order.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const TIMEOUT_US: u64 = 50_000;

fn queue() -> CalloutQueue<usize> {
    CalloutQueue::new(TIMEOUT_US, BatchLimits::SHARED)
}

fn nobody(_: &usize) -> bool {
    false
}

#[test]
fn requests_submitted_before_the_wake_up_share_a_callout() {
    let mut queue = queue();
    assert_eq!(
        queue.submit(0, Load::default(), 0),
        Submitted::Waits { wake: true }
    );
    for who in 1..4 {
        let submitted = queue.submit(10, Load::default(), who);
        assert_eq!(submitted, Submitted::Waits { wake: false });
    }
    queue.woken();
    let batch = queue.next_batch(20, |who| *who == 2).unwrap();
    assert_eq!(batch.waiters, [0, 1, 3]);
    assert_eq!(
        batch.timeout_us,
        TIMEOUT_US - 10,
        "the deadline of the last"
    );
    assert_eq!(queue.complete(batch.id), [0, 1, 3]);
    assert!(queue.is_idle());
}

#[test]
fn requests_wait_while_a_callout_is_in_flight() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    queue.woken();
    let first = queue.next_batch(0, nobody).unwrap();
    assert_eq!(
        queue.submit(10, Load::default(), 1),
        Submitted::Waits { wake: false }
    );
    assert!(queue.next_batch(20, nobody).is_none());
    queue.complete(first.id);
    assert!(queue.wants_wakeup(300));
    assert!(!queue.wants_wakeup(300), "a wake-up is pending");
    assert_eq!(queue.next_batch(310, nobody).unwrap().waiters, [1]);
}

/// F9: requests at 0 and 1 ms, and the first callout is lost: the second is sent although no further request comes.
#[test]
fn another_callout_follows_a_slow_one_without_new_requests() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    queue.woken();
    assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [0]);
    queue.submit(1_000, Load::default(), 1);
    let poll_interval_us = queue.poll_interval_us().unwrap();
    assert!(poll_interval_us <= TIMEOUT_US / 4);
    let batch = queue.next_batch(TIMEOUT_US / 4, nobody).unwrap();
    assert_eq!(batch.waiters, [1]);
    assert_eq!(batch.timeout_us, 1_000 + TIMEOUT_US - TIMEOUT_US / 4);
    // F9: each request fails at its own deadline and not at that of its callout.
    assert_eq!(queue.expired(TIMEOUT_US), [0]);
    assert_eq!(queue.expired(TIMEOUT_US + 1_000), [0, 1]);
}

/// F9: the timer makes up for a lost wake-up.
#[test]
fn the_timer_recovers_a_lost_wake_up() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    assert!(queue.poll_interval_us().is_some());
    queue.woken();
    assert!(queue.next_batch(12_500, nobody).is_some());
}

#[test]
fn a_full_batch_does_not_wait_for_the_callout_before_it() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    queue.woken();
    assert!(queue.next_batch(0, nobody).is_some());
    for who in 1..256 {
        queue.submit(1, Load::default(), who);
        assert!(queue.next_batch(1, nobody).is_none());
    }
    assert_eq!(
        queue.submit(1, Load::default(), 256),
        Submitted::Waits { wake: true }
    );
    assert_eq!(queue.next_batch(1, nobody).unwrap().waiters.len(), 256);
}

/// F5: what exceeds the protocol's bounds is split into several callouts.
#[test]
fn a_batch_is_bounded_by_decisions_checks_and_bytes() {
    let load = |decisions, checks, bytes| Load {
        decisions,
        checks,
        bytes,
    };
    for (each, together) in [
        (load(5, 5, 500), 102),
        (load(1, 40, 500), 12),
        (load(1, 4, 70_000), 3),
        (load(900, 2_000, 700_000), 1),
        (load(1, 1, 100), 256),
    ] {
        let mut queue = queue();
        for who in 0..1_000 {
            queue.submit(0, each, who);
        }
        let batch = queue.next_batch(0, nobody).unwrap();
        assert_eq!(batch.waiters.len(), together, "{each:?}");
    }
}

#[test]
fn single_batch_limits_send_a_callout_for_each_request() {
    let mut queue = CalloutQueue::new(TIMEOUT_US, BatchLimits::SINGLE);
    for who in 0..10 {
        queue.submit(0, Load::default(), who);
    }
    for who in 0..10 {
        assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [who]);
    }
    assert!(queue.next_batch(0, nobody).is_none());
}

#[test]
fn a_full_queue_refuses_requests() {
    let mut queue = queue();
    for who in 0..MAX_WAITING {
        assert!(matches!(
            queue.submit(1, Load::default(), who),
            Submitted::Waits { .. }
        ));
    }
    assert_eq!(queue.submit(1, Load::default(), 7), Submitted::Full(7));
}

#[derive(Clone, Debug)]
enum Event {
    Submit,
    /// The n-th callout in flight is answered.
    Answer(prop::sample::Index),
    /// The n-th request that has no verdict yet hangs up.
    HangUp(prop::sample::Index),
    /// The wake-up arrives, if there is one.
    Wake,
    /// The wake-up is lost, if there is one.
    LoseWakeup,
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Submit),
        3 => any::<prop::sample::Index>().prop_map(Event::Answer),
        1 => any::<prop::sample::Index>().prop_map(Event::HangUp),
        3 => Just(Event::Wake),
        1 => Just(Event::LoseWakeup),
        3 => (1..20_000_u64).prop_map(Event::Pass),
    ]
}

/// A host for the queue: Envoy's event loop with its callouts, wake-ups and timer.
struct Host {
    queue: CalloutQueue<usize>,
    now_us: u64,
    submitted_us: Vec<u64>,
    /// When each request was answered; requests that hung up count as answered.
    answered: RefCell<BTreeMap<usize, u64>>,
    hung_up: BTreeSet<usize>,
    /// Callouts in flight, and when Envoy times them out.
    in_flight: BTreeMap<CalloutId, u64>,
    wakeup: bool,
    timer_us: Option<u64>,
}

impl Host {
    fn answer(&self, who: usize) {
        self.answered.borrow_mut().entry(who).or_insert(self.now_us);
    }

    fn send(&mut self) {
        self.queue.woken();
        let answered = self.answered.borrow().clone();
        while let Some(batch) = self
            .queue
            .next_batch(self.now_us, |who| answered.contains_key(who))
        {
            assert!(!batch.waiters.is_empty());
            self.in_flight
                .insert(batch.id, self.now_us + batch.timeout_us);
        }
    }

    fn end(&mut self, id: CalloutId) {
        self.in_flight.remove(&id);
        for who in self.queue.complete(id) {
            self.answer(who);
        }
        self.wakeup |= self.queue.wants_wakeup(self.now_us);
    }

    /// Advances the clock, and lets callouts time out and the timer fire when due.
    fn pass(&mut self, us: u64) {
        let end_us = self.now_us + us;
        loop {
            let callout = self.in_flight.iter().map(|(id, at)| (*at, Some(*id))).min();
            let timer = self.timer_us.map(|at| (at, None));
            let Some((at, what)) = callout.into_iter().chain(timer).min() else {
                break;
            };
            if at > end_us {
                break;
            }
            self.now_us = at;
            match what {
                Some(id) => self.end(id),
                None => {
                    for who in self.queue.expired(at) {
                        self.answer(who);
                    }
                    self.send();
                    self.timer_us = self.queue.poll_interval_us().map(|us| at + us);
                }
            }
        }
        self.now_us = end_us;
    }
}

proptest! {
    /// Whatever the order of events, lost wake-ups included: every request is answered by its deadline plus one period
    /// of the timer, and nothing is left in the end.
    #[test]
    fn every_waiter_is_answered_in_time(events in prop::collection::vec(event(), 1..200)) {
        let mut host = Host {
            queue: queue(), now_us: 0, submitted_us: Vec::new(), answered: RefCell::default(), hung_up: BTreeSet::new(),
            in_flight: BTreeMap::new(), wakeup: false, timer_us: None,
        };
        for event in events.into_iter().chain([Event::Pass(3 * TIMEOUT_US)]) {
            match event {
                Event::Submit => {
                    let who = host.submitted_us.len();
                    host.submitted_us.push(host.now_us);
                    match host.queue.submit(host.now_us, Load::default(), who) {
                        Submitted::Waits { wake } => host.wakeup |= wake,
                        Submitted::Full(who) => host.answer(who),
                    }
                }
                Event::Answer(index) if !host.in_flight.is_empty() => {
                    let id = *index.get(&host.in_flight.keys().copied().collect::<Vec<_>>());
                    host.end(id);
                }
                Event::Answer(_) => {}
                Event::HangUp(index) => {
                    let open: Vec<_> = (0..host.submitted_us.len())
                        .filter(|who| !host.answered.borrow().contains_key(who)).collect();
                    if !open.is_empty() {
                        let who = *index.get(&open);
                        host.hung_up.insert(who);
                        host.answer(who);
                    }
                }
                Event::Wake => if std::mem::take(&mut host.wakeup) { host.send() },
                Event::LoseWakeup => host.wakeup = false,
                Event::Pass(us) => host.pass(us),
            }
            if host.timer_us.is_none() {
                host.timer_us = host.queue.poll_interval_us().map(|us| host.now_us + us);
            }
        }
        prop_assert!(host.queue.is_idle(), "{:?}", host.queue);
        let answered = host.answered.borrow();
        for (who, submitted_us) in host.submitted_us.iter().enumerate() {
            let Some(at) = answered.get(&who) else {
                return Err(TestCaseError::fail(format!("{who} was forgotten")));
            };
            prop_assert!(at - submitted_us <= TIMEOUT_US + TIMEOUT_US / 4, "{who} waited for {} us", at - submitted_us);
        }
    }
}
