//! One request: asks the sidecar, alone or with others, waits, and does what the verdict says.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sluicegate_rules::{Conclusion, Evaluation, Flight, OURS, Question, Unusable, Way};

use crate::host::{self, CurrentRequest};
use crate::shared::{Shared, Waiter};

/// What Envoy does next with a request or an answer; the ABI's numbers.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Continue = 0,
    Pause = 1,
}

/// A request, and what it is waiting for.
pub struct Stream {
    id: u32,
    // Without one when Envoy runs a filter whose configuration it has refused: then nothing is metered.
    shared: Option<Rc<Shared>>,
    waiter: Option<Rc<Waiter>>,
}

impl Stream {
    pub const fn new(id: u32, shared: Option<Rc<Shared>>) -> Self {
        Self {
            id,
            shared,
            waiter: None,
        }
    }

    /// Asks for a verdict, or has one already.
    fn ask(&mut self, shared: &Rc<Shared>, question: Question) -> Action {
        let now_us = host::monotonic_us();
        let covered = shared
            .denials
            .borrow_mut()
            .covering(&shared.rules, &question, now_us);
        if let Some(verdicts) = covered {
            let conclusion = shared.judge(&question, Ok(&verdicts));
            return self.act(conclusion);
        }
        let waiter = Rc::new(Waiter {
            id: self.id,
            question,
            gone: Cell::new(false),
            tell: RefCell::default(),
        });
        self.waiter = Some(Rc::clone(&waiter));
        if shared.bell.is_none() {
            return self.ask_alone(shared, &waiter, None);
        }
        let (way, _) = shared.lobby.borrow_mut().arrive(now_us, Rc::clone(&waiter));
        match way {
            Way::Alone(flight) => self.ask_alone(shared, &waiter, Some(flight)),
            Way::Full => {
                let conclusion = shared.judge(&waiter.question, Err(Unusable::Full));
                self.act(conclusion)
            }
            Way::Wait { ring } => {
                if ring {
                    // If nobody can be called, this answers all that wait, this one included.
                    shared.ring();
                    host::become_context(self.id);
                }
                Action::Pause
            }
        }
    }

    fn ask_alone(
        &self,
        shared: &Rc<Shared>,
        waiter: &Rc<Waiter>,
        flight: Option<Flight>,
    ) -> Action {
        if shared.ask(vec![Rc::clone(waiter)], flight, shared.timeout_us()) {
            return Action::Pause;
        }
        // Bound to a name, so that the borrow is over before the next: a second one at the same time would panic.
        let landed = |flight| {
            shared
                .lobby
                .borrow_mut()
                .landed(flight, host::monotonic_us())
        };
        if flight.is_some_and(landed) {
            shared.ring();
            host::become_context(self.id);
        }
        let conclusion = shared.judge(&waiter.question, Err(Unusable::NoAnswer));
        self.act(conclusion)
    }

    /// Does to this request what was concluded before it had to wait.
    fn act(&self, conclusion: Conclusion) -> Action {
        match conclusion {
            Conclusion::Continue(tell) => {
                if let Some(waiter) = &self.waiter {
                    waiter.tell.replace(tell);
                }
                Action::Continue
            }
            Conclusion::Answer(reply) => {
                host::reply(&reply);
                Action::Pause
            }
        }
    }

    /// Its headers are here.
    pub fn request_headers(&mut self) -> Action {
        let Some(shared) = self.shared.clone() else {
            return Action::Continue;
        };
        let request = CurrentRequest::read();
        let evaluation = shared
            .rules
            .evaluate(&request, &mut |place| shared.count(place));
        request.remove(&OURS);
        match evaluation {
            Evaluation::Pass => Action::Continue,
            Evaluation::Refuse(reply) => {
                host::reply(&reply);
                Action::Pause
            }
            Evaluation::NoVerdict(conclusion, why) => {
                host::log(host::WARN, &format!("sluicegate: no verdict: {why}"));
                self.act(conclusion)
            }
            Evaluation::Ask(question) => self.ask(&shared, question),
        }
    }

    /// The upstream's answer is here, or ours.
    pub fn response_headers(&mut self) {
        if let Some(waiter) = &self.waiter {
            for (name, value) in waiter.tell.take().iter() {
                host::set_response_header(name, value);
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            waiter.gone.set(true);
        }
    }
}
