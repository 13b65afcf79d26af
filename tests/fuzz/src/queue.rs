//! The queue of callouts, with events in any order, lost wake-ups included: each request is concluded once and in time, and the
//! bounds on callouts are kept. The host is a model of Envoy's event loop, with its timeouts and its timer.

use std::collections::BTreeMap;

use sluicegate_rules::{BatchLimits, CalloutId, CalloutQueue, Load, VerdictError};

use crate::input::Input;

/// Bounds of the queue, as its source has them.
const MAX_WAITING: usize = 4_096;
const MAX_OF_SUBJECT: usize = 1_024;
/// How many times as many callouts there may be, if all clients of some have hung up.
const MORE_WITH_ABANDONED: usize = 16;
const MAX_LOAD: Load = load_of(512, 512, 256 * 1_024);

/// Enough to fill the queue; more would take long.
const MAX_REQUESTS: usize = 4_400;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Waits,
    InFlight(CalloutId),
    /// The queue has let go of it.
    Gone,
}

#[derive(Debug)]
struct Sent {
    submitted_us: u64,
    load: Load,
    place: Place,
    /// Its conclusion, or when its client hung up.
    concluded_us: Option<u64>,
}

struct Host {
    queue: CalloutQueue<usize>,
    limits: BatchLimits,
    timeout_us: u64,
    now_us: u64,
    requests: Vec<Sent>,
    /// None before this one waits.
    first_waiting: usize,
    /// Callouts in flight, and when Envoy times them out.
    in_flight: BTreeMap<CalloutId, (u64, Vec<usize>)>,
    wakeup: bool,
    timer_us: Option<u64>,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let limits = match input.byte() % 4 {
        0 => BatchLimits::SINGLE,
        1 | 2 => BatchLimits::SHARED,
        _ => BatchLimits {
            requests: 1 + input.below(8),
            callouts: 1 + input.below(4),
        },
    };
    // What a configuration may say: 1 ms to 10 s.
    let timeout_us = 1_000 * (1 + input.up_to(9_999));
    let mut host = Host {
        queue: CalloutQueue::new(timeout_us, limits),
        limits,
        timeout_us,
        now_us: input.microseconds(),
        requests: Vec::new(),
        first_waiting: 0,
        in_flight: BTreeMap::new(),
        wakeup: false,
        timer_us: None,
    };
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        host.event(&mut input);
    }
    host.pass(4 * timeout_us);
    assert!(host.queue.is_idle(), "{:?}", host.queue);
    assert!(host.in_flight.is_empty());
    for (who, request) in host.requests.iter().enumerate() {
        let concluded_us = request.concluded_us;
        let concluded_us = concluded_us.unwrap_or_else(|| panic!("{who} is forgotten"));
        let waited_us = concluded_us - request.submitted_us;
        // The longest period of the timer.
        let period_us = (timeout_us / 4).clamp(1_000, 25_000);
        let in_time = waited_us <= timeout_us + period_us;
        assert!(in_time, "{who} waits for {waited_us} us");
    }
}

impl Host {
    fn event(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=4 => self.submit(load(input)),
            5 => {
                let load = load(input);
                (0..input.below(256)).for_each(|_| self.submit(load));
            }
            6..=8 => {
                let ids: Vec<_> = self.in_flight.keys().copied().collect();
                if !ids.is_empty() {
                    self.end(ids[input.below(ids.len().min(256))], Some(self.now_us));
                }
            }
            9 => {
                let open = |who: &usize| self.requests[*who].concluded_us.is_none();
                let open: Vec<_> = (0..self.requests.len()).filter(open).collect();
                if !open.is_empty() {
                    // The queue is not told: it asks when it makes a batch.
                    self.conclude(open[input.below(open.len().min(65_536))]);
                }
            }
            10 | 11 => {
                if std::mem::take(&mut self.wakeup) {
                    self.send();
                }
            }
            12 => self.wakeup = false,
            _ => self.pass(input.microseconds()),
        }
        if self.timer_us.is_none() {
            let period_us = self.queue.poll_interval_us();
            self.timer_us = period_us.map(|us| self.now_us + us);
        }
    }

    fn submit(&mut self, load: Load) {
        let who = self.requests.len();
        if who == MAX_REQUESTS {
            return;
        }
        let mut request = Sent {
            submitted_us: self.now_us,
            load,
            place: Place::Waits,
            concluded_us: None,
        };
        let done = |who: &usize| self.requests[*who].concluded_us.is_some();
        let load = (load, || vec![subject(who)]);
        let same = |other: usize| subject(other) == subject(who);
        match self.queue.submit(self.now_us, load, who, done) {
            Ok(wake) => {
                // Those that are done may have left the queue, which does not say so.
                let open = |_, request: &Sent| request.concluded_us.is_none();
                assert!(self.waiting(open) < MAX_WAITING);
                assert!(
                    self.waiting(|who, request| same(who) && open(who, request)) < MAX_OF_SUBJECT
                );
                self.wakeup |= wake;
            }
            Err(why) => {
                let most = self.waiting(|who, _| why == VerdictError::Full || same(who));
                assert!(
                    most >= if why == VerdictError::Full {
                        MAX_WAITING
                    } else {
                        MAX_OF_SUBJECT / 2
                    }
                );
                request.place = Place::Gone;
                request.concluded_us = Some(self.now_us);
            }
        }
        self.requests.push(request);
    }

    fn waiting(&self, which: impl Fn(usize, &Sent) -> bool) -> usize {
        // Nearly always there are too few to count them.
        if self.requests.len() < MAX_OF_SUBJECT {
            return self.requests.len();
        }
        let requests = self.requests.iter().enumerate();
        let waits =
            |(who, request): &(usize, &Sent)| request.place == Place::Waits && which(*who, request);
        requests.filter(waits).count()
    }

    fn conclude(&mut self, who: usize) {
        // The host's, not the queue's: a late answer concludes nothing.
        self.requests[who].concluded_us.get_or_insert(self.now_us);
    }

    /// Sends what may be sent now.
    fn send(&mut self) {
        self.queue.woken();
        loop {
            let done = |who: &usize| self.requests[*who].concluded_us.is_some();
            let batch = self.queue.next_batch(self.now_us, done);
            let Some(batch) = batch else { break };
            assert!(!batch.waiters.is_empty() && batch.waiters.len() <= self.limits.requests);
            let loads = || batch.waiters.iter().map(|who| self.requests[*who].load);
            let fits = |part: fn(Load) -> usize| loads().map(part).sum::<usize>() <= part(MAX_LOAD);
            let fits =
                fits(|load| load.decisions) && fits(|load| load.checks) && fits(|load| load.bytes);
            assert!(fits || batch.waiters.len() == 1, "{:?}", batch.waiters);
            let last = *batch.waiters.last().expect("one at least");
            // In order, and none is passed over but those that are done, and those for which the answer would come too late.
            let mut expected = batch.waiters.iter().peekable();
            for who in self.first_waiting..=last {
                let request = &mut self.requests[who];
                if request.place != Place::Waits {
                    continue;
                }
                let left_us = (request.submitted_us + self.timeout_us).saturating_sub(self.now_us);
                if expected.next_if_eq(&&who).is_some() {
                    request.place = Place::InFlight(batch.id);
                } else if request.concluded_us.is_none() {
                    assert!(left_us <= self.timeout_us / 16 * 15, "{who} is passed over");
                }
            }
            assert_eq!(expected.next(), None);
            let waits =
                |request: &Sent| request.place == Place::Waits && request.concluded_us.is_none();
            let open = (self.first_waiting..=last).find(|who| waits(&self.requests[*who]));
            self.first_waiting = open.unwrap_or(last + 1);
            let deadline_us = self.requests[last].submitted_us + self.timeout_us;
            assert_eq!(batch.timeout_us, deadline_us.saturating_sub(self.now_us));
            let ends_us = self.now_us + batch.timeout_us;
            let before = self.in_flight.insert(batch.id, (ends_us, batch.waiters));
            assert!(before.is_none(), "a callout's number is used twice");
            let most = self.limits.callouts.saturating_mul(MORE_WITH_ABANDONED);
            assert!(self.in_flight.len() <= most);
        }
    }

    /// A callout is over, however it ends.
    fn end(&mut self, id: CalloutId, answered_us: Option<u64>) {
        let (_, sent) = self.in_flight.remove(&id).expect("in flight");
        assert_eq!(self.queue.complete(id, answered_us), sent);
        let again = self.queue.complete(id, answered_us);
        assert!(again.is_empty(), "it completes twice");
        for who in sent {
            assert_eq!(self.requests[who].place, Place::InFlight(id));
            self.requests[who].place = Place::Gone;
            self.conclude(who);
        }
        let done = |who: &usize| self.requests[*who].concluded_us.is_some();
        self.wakeup |= self.queue.wants_wakeup(self.now_us, done);
    }

    /// The timer fires.
    fn tick(&mut self) {
        for who in self.queue.expired(self.now_us) {
            let request = &self.requests[who];
            let left_us = (request.submitted_us + self.timeout_us).saturating_sub(self.now_us);
            match request.place {
                // No answer could come in time.
                Place::Waits => {
                    assert!(left_us <= self.timeout_us / 8);
                    self.requests[who].place = Place::Gone;
                }
                Place::InFlight(_) => assert_eq!(left_us, 0),
                Place::Gone => panic!("{who} expires after its end"),
            }
            self.conclude(who);
        }
        self.send();
        self.timer_us = self.queue.poll_interval_us().map(|us| self.now_us + us);
    }

    /// Advances the clock; callouts time out and the timer fires when they are due.
    fn pass(&mut self, us: u64) {
        let end_us = self.now_us + us;
        loop {
            let callouts = self.in_flight.iter();
            let callouts = callouts.map(|(id, (ends_us, _))| (*ends_us, Some(*id)));
            let timer = self.timer_us.map(|at_us| (at_us, None));
            let Some((at_us, what)) = callouts.chain(timer).min().filter(|(at, _)| *at <= end_us)
            else {
                break;
            };
            self.now_us = at_us;
            match what {
                Some(id) => self.end(id, None),
                None => self.tick(),
            }
        }
        self.now_us = end_us;
    }
}

/// A third of the requests have the same limit and key.
const fn subject(who: usize) -> u64 {
    if who.is_multiple_of(3) { 0 } else { who as u64 }
}

const fn load_of(decisions: usize, checks: usize, bytes: usize) -> Load {
    Load {
        decisions,
        checks,
        bytes,
    }
}

fn load(input: &mut Input<'_>) -> Load {
    match input.byte() % 8 {
        0..=4 => load_of(1, 1, 200),
        5 => load_of(
            input.below(600),
            input.below(2_000),
            16 * input.below(65_536),
        ),
        6 => load_of(1, 1 + input.below(64), 512 * input.below(128)),
        _ => Load::default(),
    }
}
