//! One request: derives the question, waits for the verdict and applies it.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use sluicegate_rules::{Conclusion, Evaluation, HeaderFields, Question};

use crate::callouts::Callouts;
use crate::host::{self, CurrentRequest};
use crate::waiter::{self, State, Waiter};

/// A request's context.
pub struct Stream {
    id: u32,
    // `None` if Envoy runs a filter whose configuration was refused: then nothing is metered.
    callouts: Option<Rc<Callouts>>,
    /// Set if the request is waiting or has waited.
    waiter: Option<Rc<Waiter>>,
    /// Header fields to add to the response, if it has not waited.
    response_headers: HeaderFields,
    /// The request was answered locally, or is waiting: its body and trailers must not pass.
    held: bool,
}

impl Stream {
    pub fn new(id: u32, callouts: Option<Rc<Callouts>>) -> Self {
        Self {
            id,
            callouts,
            waiter: None,
            response_headers: HeaderFields::default(),
            held: false,
        }
    }

    fn decide(&mut self) -> Action {
        let Some(callouts) = self.callouts.clone() else {
            return Action::Continue;
        };
        let plugin = &callouts.plugin;
        let request = CurrentRequest::read();
        match plugin.rules.evaluate(&plugin.settings, &request) {
            Evaluation::Pass => Action::Continue,
            Evaluation::Refuse(reply) => self.apply(Conclusion::Answer(reply)),
            Evaluation::NoVerdict(question, why) => {
                self.apply(plugin.conclude(&question, Err(why)))
            }
            Evaluation::Ask(question) => self.ask(&callouts, question),
        }
    }

    fn ask(&mut self, callouts: &Rc<Callouts>, question: Question) -> Action {
        let plugin = &callouts.plugin;
        let now_us = host::monotonic_us();
        let cached = plugin.denials.borrow_mut().covering(&question, now_us);
        if let Some(verdicts) = cached {
            return self.apply(plugin.conclude(&question, Ok(&verdicts)));
        }
        let mut leases = plugin.leases.borrow_mut();
        let taken = leases.take(&question, now_us, plugin.timeout_us());
        drop(leases);
        callouts.renew_leases();
        if taken.covers_enforced(&question) {
            plugin.spend(&question, &taken);
        }
        if taken.covers_all(&question) {
            let conclusion = plugin.admit(&question, &taken);
            if let Conclusion::Continue(headers) = conclusion {
                self.response_headers = headers;
                return Action::Continue;
            }
            return self.apply(conclusion);
        }
        let waiter = Rc::new(Waiter::new(self.id, question, taken));
        self.waiter = Some(Rc::clone(&waiter));
        let Err(why) = callouts.submit(now_us, &waiter) else {
            return Action::Pause;
        };
        // It waits no longer: what it took is settled here, and not again when the stream ends.
        waiter.end();
        let asked = (&waiter.question, &waiter.taken);
        self.apply(plugin.conclude_rest(asked, Err(why)))
    }

    fn apply(&self, conclusion: Conclusion) -> Action {
        waiter::apply(self.waiter.as_deref(), conclusion)
    }

    fn hold(&self) -> Action {
        let state = self.waiter.as_ref().map(|waiter| waiter.state.get());
        let passed = state == Some(State::Passed);
        if self.held && !passed {
            Action::Pause
        } else {
            Action::Continue
        }
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        let action = self.decide();
        self.held = action == Action::Pause;
        action
    }

    // For a waiting request, Envoy calls these two only if `allow_on_headers_stop_iteration` is set; without them the
    // body would reach the upstream before the verdict.
    fn on_http_request_body(&mut self, _: usize, _: bool) -> Action {
        self.hold()
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        self.hold()
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        let headers = match &self.waiter {
            Some(waiter) => waiter.response_headers.take(),
            None => std::mem::take(&mut self.response_headers),
        };
        if !headers.is_empty() && !host::is_reply_of_another_filter() {
            for (name, value) in headers.iter() {
                host::set_response_header(name, value);
            }
        }
        Action::Continue
    }
}

impl Context for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Some(waiter), Some(callouts)) = (&self.waiter, &self.callouts) {
            if waiter.waits() {
                // The client has hung up.
                callouts.plugin.put_back(&waiter.question, &waiter.taken);
            }
            waiter.end();
        }
    }
}
