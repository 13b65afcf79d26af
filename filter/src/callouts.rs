//! The queue of waiting requests, callouts in flight, wake-ups and delivery.
//!
//! Only the root context makes callouts. A request joins the queue and, if no wake-up is pending, wakes the root in the
//! next turn of Envoy's event loop; by then the other requests of the same turn are waiting too. The root's timer
//! handles expired requests, slow callouts and lost wake-ups.
//!
//! Conclusions go through an outbox. Envoy performs the actions of a call into the VM when the call returns, and nests
//! them: each local reply calls `on_http_response_headers`, which performs the next one when it returns. About 270 of
//! them exhaust the VM's stack.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use proxy_wasm::types::Action;
use sluicegate_certificates::CallTimes;
use sluicegate_protocol::CachedDenials;
use sluicegate_rules::{
    BatchLimits, CalloutId, CalloutQueue, Conclusion, HeaderFields, Question, Submitted,
    VerdictError, read_answer,
};

use crate::host::{self, Wakeup};
use crate::plugin::Plugin;

/// Most conclusions that one call into the VM delivers; the rest follow after a wake-up.
const MAX_DELIVERED: usize = 64;
/// How often the counters are flushed to Envoy, and cached denials reported to the sidecar if no other callout carries
/// the report.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How often the sidecar is told which filter and configuration ask it: `sluicegate_filter_info` in its metrics. The first
/// time is a second after the start, with or without requests, so that a wrong `sidecar.cluster` is noticed at once.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(15);

/// A request that waits for its verdict, shared by its stream and the root.
pub struct Waiter {
    /// The context of its stream.
    stream: u32,
    pub question: Question,
    state: Cell<State>,
    /// Header fields to add to the response.
    pub response_headers: RefCell<HeaderFields>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    /// Its conclusion is in the outbox.
    Concluded,
    /// It was let through.
    Passed,
    /// It was answered, or its client has hung up. Its context in Envoy may or may not exist any more.
    Over,
}

impl Waiter {
    pub fn new(stream: u32, question: Question) -> Self {
        Self {
            stream,
            question,
            state: Cell::new(State::Waits),
            response_headers: RefCell::default(),
        }
    }

    fn waits(&self) -> bool {
        self.state.get() == State::Waits
    }

    /// Whether it was let through after waiting.
    pub fn passed(&self) -> bool {
        self.state.get() == State::Passed
    }

    /// Applies the conclusion to its request, which must be the current one.
    fn wake(&self, conclusion: Conclusion) {
        if apply(Some(self), conclusion) == Action::Continue {
            self.state.set(State::Passed);
            host::resume();
        } else {
            self.end();
        }
    }

    /// Marks it as done.
    pub fn end(&self) {
        self.state.set(State::Over);
    }
}

/// A callout in flight, by Envoy's token.
struct SentCallout {
    /// `None` for a callout that carries only a report.
    callout: Option<CalloutId>,
    sent_us: u64,
    report: Vec<CachedDenials<'static>>,
}

/// The callouts of one configuration.
pub struct Callouts {
    root: u32,
    pub plugin: Plugin,
    queue: RefCell<CalloutQueue<Rc<Waiter>>>,
    sent: RefCell<BTreeMap<u32, SentCallout>>,
    /// Conclusions to deliver.
    outbox: RefCell<VecDeque<(Rc<Waiter>, Conclusion)>>,
    wakeup: Wakeup,
    /// The period of the root's timer.
    tick_us: Cell<u64>,
    reported_us: Cell<u64>,
    announced_us: Cell<u64>,
}

// Borrows of a `RefCell` never overlap, because a second one would panic: each ends before the next begins.
impl Callouts {
    /// For the current root context.
    pub fn new(root: u32, plugin: Plugin) -> Self {
        let limits = if plugin.rules.sidecar.together {
            BatchLimits::SHARED
        } else {
            BatchLimits::SINGLE
        };
        host::tick_every(REPORT_EVERY);
        Self {
            root,
            queue: RefCell::new(CalloutQueue::new(plugin.timeout_us(), limits)),
            plugin,
            sent: RefCell::default(),
            outbox: RefCell::default(),
            wakeup: Wakeup::register(),
            tick_us: Cell::new(as_us(REPORT_EVERY)),
            reported_us: Cell::new(0),
            announced_us: Cell::new(0),
        }
    }

    /// Adds the current request to the queue; false if the queue is full.
    pub fn submit(&self, now_us: u64, waiter: &Rc<Waiter>) -> bool {
        let load = self.plugin.rules.load(&waiter.question);
        let submitted = self
            .queue
            .borrow_mut()
            .submit(now_us, load, Rc::clone(waiter));
        let Submitted::Waits { wake } = submitted else {
            return false;
        };
        if wake {
            self.wakeup.notify();
        }
        // Only the timer itself lengthens its period again; otherwise every request would change it twice.
        if self.tick_us.get() == as_us(REPORT_EVERY) {
            self.adjust_tick();
        }
        true
    }

    /// The root was woken by the shared queue with this id.
    pub fn on_wakeup(&self, queue: u32) {
        if self.wakeup.is(queue) {
            self.wakeup.drain();
            self.send_batches(host::monotonic_us());
            self.deliver();
        }
    }

    /// The root's timer has fired.
    pub fn on_tick(&self) {
        let now_us = host::monotonic_us();
        let expired = self.queue.borrow_mut().expired(now_us);
        for waiter in &expired {
            self.conclude(waiter, |question| {
                self.plugin.conclude(question, Err(VerdictError::Timeout))
            });
        }
        self.send_batches(now_us);
        if now_us.saturating_sub(self.reported_us.get()) >= as_us(REPORT_EVERY) {
            self.reported_us.set(now_us);
            self.report(now_us);
            self.plugin.flush_counters();
        }
        self.deliver();
        self.adjust_tick();
    }

    /// The callout with this token is over.
    pub fn on_response(&self, token: u32, headers: usize, body_size: usize) {
        let Some(sent) = self.sent.borrow_mut().remove(&token) else {
            return;
        };
        let body = host::callout_body(headers, body_size);
        self.finish_callout(sent, body.as_deref().map_err(VerdictError::clone));
        if self.queue.borrow_mut().wants_wakeup(host::monotonic_us()) {
            self.wakeup.notify();
        }
        self.deliver();
    }

    /// Sends as many callouts for waiting requests as are allowed now.
    fn send_batches(&self, now_us: u64) {
        self.queue.borrow_mut().woken();
        loop {
            let batch = self
                .queue
                .borrow_mut()
                .next_batch(now_us, |waiter| !waiter.waits());
            let Some(batch) = batch else { return };
            let questions = batch.waiters.iter().map(|waiter| &waiter.question);
            self.post(now_us, Some(batch.id), questions, batch.timeout_us, None);
        }
    }

    /// Sends a report of cached denials, if there are any, and an announcement, if it is due.
    fn report(&self, now_us: u64) {
        let is_due = now_us.saturating_sub(self.announced_us.get()) >= as_us(ANNOUNCE_EVERY);
        if is_due {
            self.announced_us.set(now_us);
        }
        let announcement = is_due.then_some(self.plugin.announcement.as_str());
        // A variable of its own, so that the borrow ends before the next one.
        let has_report = self.plugin.denials.borrow().has_report();
        if has_report || is_due {
            let timeout_us = self.plugin.timeout_us();
            self.post(now_us, None, std::iter::empty(), timeout_us, announcement);
        }
    }

    fn post<'q>(
        &self,
        now_us: u64,
        callout: Option<CalloutId>,
        questions: impl Iterator<Item = &'q Question>,
        timeout_us: u64,
        announcement: Option<&str>,
    ) {
        let report = self.plugin.denials.borrow_mut().report();
        let body = self.plugin.rules.question_body(questions, &report);
        let sent = SentCallout {
            callout,
            sent_us: now_us,
            report,
        };
        // Envoy's timeouts are in milliseconds, and 0 means no timeout.
        let timeout = Duration::from_millis(timeout_us.div_ceil(1_000).max(1));
        let cluster = &self.plugin.rules.sidecar.cluster;
        match host::post(cluster, announcement, &body, timeout) {
            Ok(token) => drop(self.sent.borrow_mut().insert(token, sent)),
            Err(why) => {
                if announcement.is_some() {
                    self.plugin.not_announced(&why);
                }
                self.finish_callout(sent, Err(why));
            }
        }
    }

    /// Concludes for all requests of a callout.
    fn finish_callout(&self, sent: SentCallout, body: Result<&[u8], VerdictError>) {
        let waiters = match sent.callout {
            Some(callout) => self.queue.borrow_mut().complete(callout),
            None => Vec::new(),
        };
        let decisions = |waiter: &Rc<Waiter>| waiter.question.decisions();
        let times = CallTimes {
            sent_us: sent.sent_us,
            answered_us: host::monotonic_us(),
        };
        let answer = body.and_then(|body| read_answer(body, waiters.iter().map(decisions).sum()));
        if answer.is_err() {
            self.plugin.denials.borrow_mut().put_back(sent.report);
        }
        let mut from = 0;
        for waiter in &waiters {
            let to = from + decisions(waiter);
            let verdicts = match &answer {
                Ok(answer) => Ok(answer.verdicts.get(from..to).unwrap_or_default()),
                Err(why) => Err(why.clone()),
            };
            if let (Ok(answer), Ok(verdicts)) = (&answer, &verdicts) {
                self.plugin.denials.borrow_mut().learn(
                    &self.plugin.rules,
                    &waiter.question,
                    answer.version(),
                    verdicts,
                    times,
                );
            }
            self.conclude(waiter, |question| self.plugin.conclude(question, verdicts));
            from = to;
        }
    }

    /// Puts a conclusion into the outbox, unless the request has one already or its client has hung up.
    fn conclude(&self, waiter: &Rc<Waiter>, conclusion: impl FnOnce(&Question) -> Conclusion) {
        if waiter.waits() {
            waiter.state.set(State::Concluded);
            let conclusion = conclusion(&waiter.question);
            self.outbox
                .borrow_mut()
                .push_back((Rc::clone(waiter), conclusion));
        }
    }

    /// Delivers as many conclusions as one call into the VM may, and wakes the root for the rest.
    fn deliver(&self) {
        for _ in 0..MAX_DELIVERED {
            // A variable of its own, so that the borrow ends before the next one.
            let next = self.outbox.borrow_mut().pop_front();
            let Some((waiter, conclusion)) = next else {
                return;
            };
            // The client may have hung up meanwhile.
            if waiter.state.get() == State::Concluded {
                host::in_context(waiter.stream, self.root, || waiter.wake(conclusion));
            }
        }
        // As above.
        let more = !self.outbox.borrow().is_empty();
        if more {
            self.wakeup.notify();
        }
    }

    /// Adjusts the timer's period to what waiting requests need.
    fn adjust_tick(&self) {
        let poll_interval_us = self.queue.borrow().poll_interval_us();
        let idle = poll_interval_us.is_none() && self.outbox.borrow().is_empty();
        let tick_us = match poll_interval_us {
            Some(tick_us) => tick_us,
            None if idle => as_us(REPORT_EVERY),
            // A wake-up delivers the rest; the timer makes up for a lost one.
            None => self.tick_us.get(),
        };
        if self.tick_us.replace(tick_us) != tick_us {
            host::tick_every(Duration::from_micros(tick_us));
        }
    }
}

/// Applies a conclusion to the current request, at once or after it has waited.
pub fn apply(waiter: Option<&Waiter>, conclusion: Conclusion) -> Action {
    match conclusion {
        Conclusion::Continue(headers) => {
            if let Some(waiter) = waiter {
                waiter.response_headers.replace(headers);
            }
            Action::Continue
        }
        Conclusion::Unmetered(why) => {
            host::set_filter_state(&why);
            Action::Continue
        }
        Conclusion::Answer(reply) => {
            host::reply(&reply);
            Action::Pause
        }
    }
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
