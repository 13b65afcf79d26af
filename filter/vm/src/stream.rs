//! One request: derives the question, waits for the verdict and applies it.

use std::rc::Rc;

use sluicegate_rules::{HeaderFields, Pushed};

use crate::callouts::{Callouts, Decision};
use crate::host::{Action, Host};
use crate::waiter::{self, State, Waiter};

/// A request's context.
pub struct Stream<H: Host> {
    host: H,
    id: u32,
    // `None` if Envoy runs a filter whose configuration was refused, or was not built: then every request is refused, unless
    // `unbuilt` says otherwise.
    callouts: Option<Rc<Callouts<H>>>,
    unbuilt: Option<Rc<Pushed>>,
    /// Set if the request is waiting or has waited.
    waiter: Option<Rc<Waiter>>,
    /// Header fields to add to the response, if it has not waited.
    response_headers: HeaderFields,
    /// The request was answered locally, or is waiting: its body and trailers must not pass.
    held: bool,
}

impl<H: Host> Stream<H> {
    pub(crate) fn new(
        host: H,
        id: u32,
        callouts: Option<Rc<Callouts<H>>>,
        unbuilt: Option<Rc<Pushed>>,
    ) -> Self {
        Self {
            host,
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
            let request = self.host.current_request();
            let conclusion = waiter::without_rules(&self.host, self.unbuilt.as_deref(), &request);
            return waiter::apply(&self.host, conclusion, |_| {});
        };
        match callouts.decide(self.id) {
            Decision::Concluded(conclusion) => waiter::apply(&self.host, conclusion, |headers| {
                self.response_headers = headers;
            }),
            Decision::Waits(waiter) => {
                self.waiter = Some(waiter);
                Action::Pause
            }
        }
    }

    /// The headers of its request have come.
    pub fn on_request_headers(&mut self) -> Action {
        let action = self.decide();
        self.held = action == Action::Pause;
        action
    }

    /// A part of its body or its trailers have come, which must not pass before the verdict.
    pub fn on_request_rest(&self) -> Action {
        let state = self.waiter.as_ref().map(|waiter| waiter.state.get());
        let passed = state == Some(State::Passed);
        if self.held && !passed {
            Action::Pause
        } else {
            Action::Continue
        }
    }

    /// The headers of its response are about to be sent.
    pub fn on_response_headers(&mut self) {
        let headers = match &self.waiter {
            Some(waiter) => waiter.response_headers.take(),
            None => std::mem::take(&mut self.response_headers),
        };
        if let Some(reserves) = self
            .waiter
            .as_ref()
            .and_then(|waiter| waiter.reserves.get())
        {
            reserves.read_headers(&|path| self.host.property(path));
        }
        if !headers.is_empty() && !self.host.is_reply_of_another_filter() {
            for (name, value) in headers.iter() {
                self.host.set_response_header(name, value);
            }
        }
    }
}

impl<H: Host> Drop for Stream<H> {
    fn drop(&mut self) {
        if let (Some(waiter), Some(callouts)) = (&self.waiter, &self.callouts) {
            if let (true, Some((question, taken))) = (waiter.waits(), waiter.asked()) {
                // The client has hung up.
                callouts.plugin.put_back(question, taken);
            }
            let passed = waiter.state.replace(State::Over) == State::Passed;
            if let Some(reserves) = waiter.reserves.get() {
                callouts.settle(reserves, passed);
            }
        }
    }
}
