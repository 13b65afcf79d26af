//! The queue, in whatever order things happen.

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
fn all_that_arrive_before_the_wake_up_leave_together() {
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
fn behind_a_callout_requests_wait_until_it_is_over() {
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

/// F9: arrivals at 0 and 1 ms, the first callout lost: the second is asked for although nobody else arrives.
#[test]
fn behind_a_slow_callout_another_leaves_without_further_arrivals() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    queue.woken();
    assert_eq!(queue.next_batch(0, nobody).unwrap().waiters, [0]);
    queue.submit(1_000, Load::default(), 1);
    let look_again_us = queue.look_again_us().unwrap();
    assert!(look_again_us <= TIMEOUT_US / 4);
    let batch = queue.next_batch(TIMEOUT_US / 4, nobody).unwrap();
    assert_eq!(batch.waiters, [1]);
    assert_eq!(batch.timeout_us, 1_000 + TIMEOUT_US - TIMEOUT_US / 4);
    // F9: each fails by its own deadline and not by its callout's.
    assert_eq!(queue.expired(TIMEOUT_US), [0]);
    assert_eq!(queue.expired(TIMEOUT_US + 1_000), [0, 1]);
}

/// F9: a wake-up that nobody hears is made up for by the timer.
#[test]
fn a_lost_wake_up_is_made_up_for() {
    let mut queue = queue();
    queue.submit(0, Load::default(), 0);
    assert!(queue.look_again_us().is_some());
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

/// F5: what would exceed the wire's bounds goes in several callouts.
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
fn a_callout_for_each_request_can_be_had() {
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
fn past_the_bound_there_is_no_room() {
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
    Arrive,
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
        6 => Just(Event::Arrive),
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
    arrived_us: Vec<u64>,
    /// Who has been answered, and when; those that hung up count as answered.
    answered: RefCell<BTreeMap<usize, u64>>,
    hung_up: BTreeSet<usize>,
    /// Callouts in flight and when Envoy gives them up.
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

    /// Lets time pass, with callouts given up and the timer firing when they are due.
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
                    self.timer_us = self.queue.look_again_us().map(|us| at + us);
                }
            }
        }
        self.now_us = end_us;
    }
}

proptest! {
    /// In whatever order things happen, wake-ups lost included: every request is answered by its deadline and a look
    /// of the timer, and in the end nothing is left.
    #[test]
    fn every_waiter_is_answered_in_time(events in prop::collection::vec(event(), 1..200)) {
        let mut host = Host {
            queue: queue(), now_us: 0, arrived_us: Vec::new(), answered: RefCell::default(), hung_up: BTreeSet::new(),
            in_flight: BTreeMap::new(), wakeup: false, timer_us: None,
        };
        for event in events.into_iter().chain([Event::Pass(3 * TIMEOUT_US)]) {
            match event {
                Event::Arrive => {
                    let who = host.arrived_us.len();
                    host.arrived_us.push(host.now_us);
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
                    let open: Vec<_> = (0..host.arrived_us.len())
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
                host.timer_us = host.queue.look_again_us().map(|us| host.now_us + us);
            }
        }
        prop_assert!(host.queue.is_idle(), "{:?}", host.queue);
        let answered = host.answered.borrow();
        for (who, arrived_us) in host.arrived_us.iter().enumerate() {
            let Some(at) = answered.get(&who) else {
                return Err(TestCaseError::fail(format!("{who} was forgotten")));
            };
            prop_assert!(at - arrived_us <= TIMEOUT_US + TIMEOUT_US / 4, "{who} waited for {} us", at - arrived_us);
        }
    }
}
