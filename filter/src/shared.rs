//! What the requests of one configuration share: rules, counters, who waits, what is denied without asking.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use sluicegate_protocol::{Asked, DeniedHere, Verdict};
use sluicegate_rules::{
    Conclusion, Denials, Fields, Flight, Lobby, Question, Rules, Unusable, read_answer,
};

use crate::host::{self, Bell, Counter};

/// A request that has asked and is not answered yet, known to its stream and to whoever brings the answer.
pub struct Waiter {
    /// Its stream's context.
    pub id: u32,
    pub question: Question,
    /// The client has hung up.
    pub gone: Cell<bool>,
    /// To be put into the upstream's answer.
    pub tell: RefCell<Fields>,
}

/// A call to the sidecar that is under way.
struct Call {
    /// `None` for one that carries a report and nobody.
    flight: Option<Flight>,
    /// Whom it asks for, in the order in which it does.
    waiters: Vec<Rc<Waiter>>,
    sent_us: u64,
    report: Vec<DeniedHere<'static>>,
}

/// One configuration's.
pub struct Shared {
    pub rules: Rules,
    pub lobby: RefCell<Lobby<Rc<Waiter>>>,
    pub denials: RefCell<Denials>,
    /// Under way, by Envoy's numbers. Envoy brings every answer to the root, also one that a request has asked for by
    /// itself, and also when that request is gone.
    calls: RefCell<BTreeMap<u32, Call>>,
    /// Without one every request makes a callout of its own.
    pub bell: Option<Bell>,
    /// In the places that the rules know them by, each with what Envoy has not been told yet: a call to the host for
    /// every count would be three for a denial.
    counters: Vec<(Option<Counter>, Cell<i64>)>,
    /// The last decision had no verdict. Kept to say so in the log once and not for each request.
    unavailable: Cell<bool>,
}

impl Shared {
    pub fn new(rules: Rules, bell: Option<Bell>) -> Self {
        let plugin = host::plugin_name();
        let plugin = if plugin.is_empty() {
            "sluicegate"
        } else {
            &plugin
        };
        let counter = |name: &String| (Counter::new(&format!("{plugin}.{name}")), Cell::new(0));
        Self {
            counters: rules.counters().names().iter().map(counter).collect(),
            lobby: RefCell::new(Lobby::new(timeout_us(&rules))),
            denials: RefCell::default(),
            calls: RefCell::default(),
            bell,
            rules,
            unavailable: Cell::new(false),
        }
    }

    /// How long a request waits for its verdict.
    pub fn timeout_us(&self) -> u64 {
        timeout_us(&self.rules)
    }

    /// Counts one under the counter in this place.
    pub fn count(&self, place: usize) {
        if let Some((_, untold)) = self.counters.get(place) {
            untold.set(untold.get().saturating_add(1));
        }
    }

    /// Tells Envoy what was counted.
    pub fn tell_counts(&self) {
        for (counter, untold) in &self.counters {
            if let (Some(counter), count @ 1..) = (counter, untold.take()) {
                counter.add(count);
            }
        }
    }

    /// Asks for these requests, or reports if there are none. False when Envoy refuses the call.
    pub fn ask(&self, waiters: Vec<Rc<Waiter>>, flight: Option<Flight>, timeout_us: u64) -> bool {
        let report = self.denials.borrow_mut().report();
        let questions = waiters.iter().map(|waiter| &waiter.question);
        let body = self.rules.question_body(questions, &report);
        let call = Call {
            flight,
            waiters,
            sent_us: host::monotonic_us(),
            report,
        };
        // Envoy's timeouts are whole milliseconds, and 0 is none at all.
        let timeout = std::time::Duration::from_millis((timeout_us / 1_000).max(1));
        let token = host::post(
            &self.rules.sidecar.cluster,
            sluicegate_protocol::DECIDE_PATH,
            &body,
            timeout,
        );
        match token {
            Some(token) => drop(self.calls.borrow_mut().insert(token, call)),
            None => self.denials.borrow_mut().put_back(call.report),
        }
        token.is_some()
    }

    /// Says that a call is over, and has those boarded who have come in the meantime.
    fn land(&self, flight: Option<Flight>) {
        let Some(flight) = flight else { return };
        if self.lobby.borrow_mut().landed(flight, host::monotonic_us()) {
            self.ring();
        }
    }

    /// Has the root called, or answers all that wait if that cannot be done.
    pub fn ring(&self) {
        if !self.bell.as_ref().is_some_and(Bell::ring) {
            let waiting = self.lobby.borrow_mut().abandon();
            self.fail(&waiting);
        }
    }

    /// The call of this number is over: its requests are told what becomes of them. The current context is then another:
    /// the caller's own has to be put back.
    pub fn answered(&self, token: u32, headers: usize, body_size: usize) {
        // Bound to a name, so that the borrow is over before the next: a second one at the same time would panic.
        let call = self.calls.borrow_mut().remove(&token);
        let Some(call) = call else { return };
        let body = host::callout_body(headers, body_size);
        let asked = Asked {
            sent_us: call.sent_us,
            answered_us: host::monotonic_us(),
        };
        self.land(call.flight);
        let decisions = |waiter: &Rc<Waiter>| waiter.question.decisions();
        let answer = body
            .as_deref()
            .map_err(Unusable::clone)
            .and_then(|body| read_answer(body, call.waiters.iter().map(decisions).sum()));
        if answer.is_err() {
            self.denials.borrow_mut().put_back(call.report);
        }
        let mut from = 0;
        for waiter in &call.waiters {
            let to = from + decisions(waiter);
            let verdicts = match &answer {
                Ok(answer) => {
                    let verdicts = answer.verdicts.get(from..to).unwrap_or_default();
                    self.denials.borrow_mut().learn(
                        &self.rules,
                        &waiter.question,
                        answer.version(),
                        verdicts,
                        asked,
                    );
                    Ok(verdicts)
                }
                Err(why) => Err(why.clone()),
            };
            deliver(waiter, self.judge(&waiter.question, verdicts));
            from = to;
        }
    }

    /// What becomes of a request, counted and, where verdicts cease to come or come again, logged.
    pub fn judge(
        &self,
        question: &Question,
        verdicts: Result<&[Verdict<'_>], Unusable>,
    ) -> Conclusion {
        let (conclusion, why) = self
            .rules
            .conclude(question, verdicts, &mut |place| self.count(place));
        match (self.unavailable.replace(why.is_some()), why) {
            (false, Some(why)) => host::log(host::WARN, &format!("sluicegate: no verdict: {why}")),
            (true, None) => host::log(host::WARN, "sluicegate: verdicts come again"),
            _ => {}
        }
        conclusion
    }

    /// Answers requests that no call can be made for.
    pub fn fail(&self, waiters: &[Rc<Waiter>]) {
        for waiter in waiters {
            let conclusion = self.judge(&waiter.question, Err(Unusable::Timeout));
            deliver(waiter, conclusion);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.tell_counts();
    }
}

/// Does to a request what was concluded. The current context is then another: the caller's own has to be put back.
fn deliver(waiter: &Waiter, conclusion: Conclusion) {
    // A client that hung up is not told; its stream may be gone already, and its number with it.
    if waiter.gone.get() || !host::become_context(waiter.id) {
        return;
    }
    match conclusion {
        Conclusion::Continue(tell) => {
            waiter.tell.replace(tell);
            host::resume();
        }
        Conclusion::Unmetered(_) => host::resume(),
        Conclusion::Answer(reply) => host::reply(&reply),
    }
}

fn timeout_us(rules: &Rules) -> u64 {
    u64::try_from(rules.sidecar.timeout.as_micros()).unwrap_or(u64::MAX)
}
