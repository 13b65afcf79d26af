//! A request that waits for its verdict, and what its conclusion does.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use sluicegate_rules::{
    Conclusion, HeaderFields, Pushed, Question, Reply, Request, Reserves, Taken,
};

use crate::host::{Action, Host};

/// A request that waits for its verdict, shared by its stream and the root.
pub struct Waiter {
    /// The context of its stream.
    pub stream: u32,
    /// Its question, and the units that leases have for it: spent if it passes, otherwise put back; units that decide by themselves
    /// are spent already. Empty while it waits for the first rules.
    asked: OnceCell<(Question, Taken)>,
    pub state: Cell<State>,
    /// Header fields to add to the response.
    pub response_headers: RefCell<HeaderFields>,
    /// What its verdicts have reserved, to be settled when its stream ends.
    pub reserves: OnceCell<Rc<Reserves>>,
}

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
            reserves: OnceCell::new(),
        }
    }

    /// Its question, and the units that it took from leases.
    pub fn asked(&self) -> Option<(&Question, &Taken)> {
        self.asked.get().map(|(question, taken)| (question, taken))
    }

    /// From now on it waits for the verdict on this; it asks once.
    pub fn ask(&self, question: Question, taken: Taken) -> (&Question, &Taken) {
        let (question, taken) = self.asked.get_or_init(|| (question, taken));
        (question, taken)
    }

    pub fn waits(&self) -> bool {
        self.state.get() == State::Waits
    }

    /// Whether its conclusion is made, or its client has hung up.
    pub fn is_done(this: &Rc<Self>) -> bool {
        !this.waits()
    }

    /// Applies the conclusion to its request, which must be the current one.
    pub fn wake(&self, host: &impl Host, conclusion: Conclusion) {
        let keep = |headers| drop(self.response_headers.replace(headers));
        if apply(host, conclusion, keep) == Action::Continue {
            self.state.set(State::Passed);
            host.resume();
        } else {
            self.end();
        }
    }

    /// Marks it as done.
    pub fn end(&self) {
        self.state.set(State::Over);
    }
}

/// Applies a conclusion to the current request, at once or after it has waited. `keep` gets the headers for its response.
pub fn apply(host: &impl Host, conclusion: Conclusion, keep: impl FnOnce(HeaderFields)) -> Action {
    match conclusion {
        Conclusion::Continue(headers, shadows) => {
            if !shadows.is_empty() {
                host.set_filter_state(&shadows);
            }
            keep(headers);
            Action::Continue
        }
        Conclusion::Unmetered(why) => {
            host.set_filter_state(&why);
            Action::Continue
        }
        Conclusion::Answer(reply) => {
            if let Some(subject) = &reply.subject {
                host.set_filter_state(subject);
            }
            host.reply(&reply);
            Action::Pause
        }
    }
}

/// Concludes for a request while no rules are known. Without `pushed`, the configuration was not built.
pub fn without_rules(
    host: &impl Host,
    pushed: Option<&Pushed>,
    request: &dyn Request,
) -> Conclusion {
    let Some(pushed) = pushed else {
        return Conclusion::Answer(Reply::not_configured());
    };
    let (conclusion, counter) = pushed.without_rules(request);
    host.add_to_counter(counter, 1);
    conclusion
}
