//! One plugin configuration. A VM may hold several at once: other listeners' and routes', and the one before a reload
//! while its requests finish. So what belongs to a configuration hangs on its root. It makes the callouts for requests
//! that wait together, since a callout belongs to the context that made it, and a request's own may vanish.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::host::{self, Bell};
use crate::shared::Shared;
use crate::stream::Stream;

/// How often Envoy is told what was counted, and the sidecar what was denied without asking if no callout took it along.
const REPORT_EVERY: Duration = Duration::from_secs(1);

thread_local! {
    /// Names of bells whose roots are gone. The one thing that is the VM's and not a configuration's: a bell cannot be
    /// taken down, and each reload would leave another.
    static USED_BELLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The root context; without a configuration until `on_configure` has found it good.
pub struct Root {
    id: u32,
    shared: Option<Rc<Shared>>,
}

impl Root {
    pub const fn new(id: u32) -> Self {
        Self { id, shared: None }
    }

    /// Makes a callout for all that wait; more, if Envoy refuses one.
    fn board(&self, shared: &Shared) {
        loop {
            let boarding = shared
                .lobby
                .borrow_mut()
                .board(host::monotonic_us(), |waiter| waiter.gone.get());
            shared.fail(&boarding.late);
            host::become_context(self.id);
            if boarding.passengers.is_empty() {
                return;
            }
            let passengers = boarding.passengers.clone();
            if shared.ask(passengers, Some(boarding.flight), boarding.timeout_us) {
                return;
            }
            shared.fail(&boarding.passengers);
            host::become_context(self.id);
            if !shared
                .lobby
                .borrow_mut()
                .landed(boarding.flight, host::monotonic_us())
            {
                return;
            }
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Some(bell) = self.shared.as_ref().and_then(|shared| shared.bell.clone()) {
            USED_BELLS.with_borrow_mut(|used| used.push(bell.into_name()));
        }
    }
}

impl Root {
    /// Reads the configuration, of so many bytes. False, with the reason in Envoy's log, when it cannot be used.
    pub fn configure(&mut self, size: usize) -> bool {
        let configuration = host::plugin_configuration(size).unwrap_or_default();
        match sluicegate_rules::parse(&configuration) {
            Ok(rules) => {
                let hang = || Bell::hang(USED_BELLS.with_borrow_mut(Vec::pop));
                let bell = rules.sidecar.together.then(hang).flatten();
                self.shared = Some(Rc::new(Shared::new(rules, bell)));
                host::tick_every(REPORT_EVERY);
                true
            }
            Err(error) => {
                host::log(
                    host::CRITICAL,
                    &format!("sluicegate: configuration refused: {error}"),
                );
                false
            }
        }
    }

    /// A bell was rung.
    pub fn queue_ready(&self, queue: u32) {
        if let Some(shared) = &self.shared
            && let Some(bell) = shared.bell.as_ref().filter(|bell| bell.is(queue))
        {
            bell.silence();
            self.board(shared);
        }
    }

    /// `REPORT_EVERY` has passed.
    pub fn tick(&self) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.tell_counts();
        // Bound to a name, so that the borrow is over before the next: a second one at the same time would panic.
        let has_report = shared.denials.borrow().has_report();
        if has_report {
            shared.ask(Vec::new(), None, shared.timeout_us());
        }
    }

    /// The callout with this number is over.
    pub fn answered(&self, token: u32, headers: usize, body_size: usize) {
        if let Some(shared) = &self.shared {
            shared.answered(token, headers, body_size);
            host::become_context(self.id);
        }
    }

    /// A request to it.
    pub fn stream(&self, id: u32) -> Stream {
        Stream::new(id, self.shared.clone())
    }
}
