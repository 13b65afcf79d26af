//! Wakes a root context in the next turn of Envoy's event loop.

use std::cell::{Cell, RefCell};

use crate::host::Host;

thread_local! {
    /// Names of queues whose configurations no longer exist: a shared queue cannot be unregistered, so without reuse each
    /// reload would leave another one behind.
    static UNUSED_QUEUES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A shared queue that is used for its notification only.
pub struct Wakeup<H: Host> {
    host: H,
    name: Option<String>,
    queue: Option<u32>,
    /// Messages sent and not removed yet.
    sent: Cell<usize>,
}

impl<H: Host> Wakeup<H> {
    /// For the current root context. If Envoy provides no queue, the root's timer does the work later.
    pub fn register(host: H) -> Self {
        let name = UNUSED_QUEUES.with_borrow_mut(Vec::pop).or_else(|| {
            // All workers share the queues by name, and each needs its own.
            host.random().map(|random| format!("sluicegate-{random}"))
        });
        let queue = name.as_deref().and_then(|name| host.register_queue(name));
        Self {
            host,
            name,
            queue,
            sent: Cell::new(0),
        }
    }

    /// Whether the notification of this queue belongs to this wake-up.
    pub fn is(&self, queue: u32) -> bool {
        self.queue == Some(queue)
    }

    /// Sends the notification.
    pub fn notify(&self) {
        if self.queue.is_some_and(|queue| self.host.enqueue(queue)) {
            self.sent.set(self.sent.get().saturating_add(1));
        }
    }

    /// Removes the messages of past notifications, so that the queue does not grow.
    pub fn drain(&self) {
        // By count, because an empty message is not told from an empty queue.
        for queue in std::iter::repeat_n(self.queue, self.sent.take()).flatten() {
            self.host.dequeue(queue);
        }
    }
}

impl<H: Host> Drop for Wakeup<H> {
    fn drop(&mut self) {
        UNUSED_QUEUES.with_borrow_mut(|unused| unused.extend(self.name.take()));
    }
}
