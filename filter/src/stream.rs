//! One request: derives the question, waits for the verdict and applies it.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;
use sluicegate_rules::{Conclusion, HeaderFields, Pushed};

use crate::callouts::{Callouts, Decision};
use crate::host::{self, CurrentRequest};
use crate::waiter::{self, State, Waiter};

/// A request's context.
pub struct Stream {
    id: u32,
    // `None` if Envoy runs a filter whose configuration was refused, or was not built: then every request is refused, unless
    // `unbuilt` says otherwise.
    callouts: Option<Rc<Callouts>>,
    unbuilt: Option<Rc<Pushed>>,
    /// Set if the request is waiting or has waited.
    waiter: Option<Rc<Waiter>>,
    /// Header fields to add to the response, if it has not waited.
    response_headers: HeaderFields,
    /// The request was answered locally, or is waiting: its body and trailers must not pass.
    held: bool,
}

impl Stream {
    pub fn new(id: u32, callouts: Option<Rc<Callouts>>, unbuilt: Option<Rc<Pushed>>) -> Self {
        Self {
            id,
            callouts,
            unbuilt,
            waiter: None,
            response_headers: HeaderFields::default(),
            held: false,
        }
    }

    fn decide(&mut self) -> Action {
        let Some(callouts) = self.callouts.clone() else {
            let request = CurrentRequest::read();
            let conclusion = waiter::without_rules(self.unbuilt.as_deref(), &request);
            return waiter::apply(None, conclusion);
        };
        match callouts.decide(self.id) {
            Decision::Concluded(Conclusion::Continue(headers)) => {
                self.response_headers = headers;
                Action::Continue
            }
            Decision::Concluded(conclusion) => waiter::apply(None, conclusion),
            Decision::Waits(waiter) => {
                self.waiter = Some(waiter);
                Action::Pause
            }
        }
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
            if let (true, Some((question, taken))) = (waiter.waits(), waiter.asked()) {
                // The client has hung up.
                callouts.plugin.put_back(question, taken);
            }
            waiter.end();
        }
    }
}
