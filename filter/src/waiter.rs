//! A request that waits for its verdict, and what its conclusion does.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use proxy_wasm::types::Action;
use sluicegate_rules::{Conclusion, HeaderFields, Question, Taken};

use crate::host;

/// A request that waits for its verdict, shared by its stream and the root.
pub struct Waiter {
    /// The context of its stream.
    pub stream: u32,
    /// What it asks; nothing while it waits for the first rules.
    asked: OnceCell<Asked>,
    pub state: Cell<State>,
    /// Header fields to add to the response.
    pub response_headers: RefCell<HeaderFields>,
}

/// A question, and the units that leases have for it: spent if it passes, else put back. Those that decide by themselves are
/// spent already.
pub type Asked = (Question, Taken);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Waits,
    /// Its conclusion is in the outbox.
    Concluded,
    /// It was let through.
    Passed,
    /// It was answered, or its client has hung up. Its context in Envoy may or may not exist any more.
    Over,
}

impl Waiter {
    pub fn new(stream: u32) -> Self {
        Self {
            stream,
            asked: OnceCell::new(),
            state: Cell::new(State::Waits),
            response_headers: RefCell::default(),
        }
    }

    /// What it asks, and what it has of leases.
    pub fn asked(&self) -> Option<&Asked> {
        self.asked.get()
    }

    /// From now on it waits for the verdict on this.
    pub fn ask(&self, asked: Asked) {
        // It asks once.
        let _ = self.asked.set(asked);
    }

    pub fn waits(&self) -> bool {
        self.state.get() == State::Waits
    }

    /// Whether its conclusion is made, or its client has hung up.
    pub fn is_done(this: &Rc<Self>) -> bool {
        !this.waits()
    }

    /// Applies the conclusion to its request, which must be the current one.
    pub fn wake(&self, conclusion: Conclusion) {
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
            if let Some(subject) = &reply.subject {
                host::set_filter_state(subject);
            }
            host::reply(&reply);
            Action::Pause
        }
    }
}
