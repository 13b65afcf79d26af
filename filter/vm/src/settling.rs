//! What requests have reserved, until the sidecar knows what they have used.

use std::cell::{Cell, Ref, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use sluicegate_protocol::{SETTLE_PATH, VM_HEADER};
use sluicegate_rules::{Fact, Facts, Reserves};

use crate::host::Host;
use crate::plugin::Plugin;
use crate::waiter::Waiter;

/// How long the sidecar may take to confirm facts: no request waits.
const TIMEOUT: Duration = Duration::from_secs(2);

thread_local! {
    /// Facts of configurations that are gone: those of streams that a change of the listener cut. Another one of the VM sends them.
    static LEFT: RefCell<Vec<Fact>> = const { RefCell::new(Vec::new()) };
}

/// The reserves of one configuration's requests.
#[derive(Default)]
pub struct Settling {
    /// What the sidecar must learn, and the callout in flight that tells it.
    facts: RefCell<Facts>,
    sent: Cell<Option<u32>>,
    /// What living streams have reserved.
    living: RefCell<Vec<Weak<Reserves>>>,
}

// Borrows of a `RefCell` never overlap, because a second one would panic: each ends before the next begins.
impl Settling {
    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.facts.borrow().is_empty()
    }

    /// Keeps what a request has reserved until its stream ends.
    pub fn keep(&self, waiter: &Waiter, reserves: Rc<Reserves>) {
        self.living.borrow_mut().push(Rc::downgrade(&reserves));
        // A request asks once.
        let _ = waiter.reserves.set(reserves);
    }

    /// The current stream, which has reserved this, has ended: after its request has passed, or not. Whether to send facts at once.
    pub fn ended<H: Host>(
        &self,
        plugin: &Plugin<H>,
        reserves: &Rc<Reserves>,
        passed: bool,
        now_us: u64,
    ) -> bool {
        for (limit, key) in reserves.slots() {
            let mut denials = plugin.denials.borrow_mut();
            denials.released(limit, key, now_us);
        }
        let facts = if passed {
            reserves.ended(&|path| plugin.host.property(path))
        } else {
            reserves.unused()
        };
        self.facts.borrow_mut().add(facts, now_us)
    }

    /// Adds signs of the streams that still live, and what configurations that are gone have left. The next call comes at that time
    /// at the earliest. Whether to send facts at once.
    pub fn renew(&self, now_us: u64, next_us: u64) -> bool {
        let (mut facts, room) = (LEFT.take(), self.facts.borrow().room());
        self.living.borrow_mut().retain(|reserves| {
            let reserves = reserves.upgrade().filter(|reserves| reserves.lives());
            if let Some(reserves) = reserves.as_ref().filter(|_| facts.len() < room) {
                reserves.renew_before(next_us);
                facts.extend(reserves.renewals(now_us));
            }
            reserves.is_some()
        });
        self.facts.borrow_mut().add(facts, now_us)
    }

    /// What the sidecar must learn.
    pub fn facts(&self) -> Ref<'_, Facts> {
        self.facts.borrow()
    }

    /// Sends facts, if any are due and none are on their way.
    pub fn send<H: Host>(&self, plugin: &Plugin<H>, now_us: u64) {
        let body = self.facts.borrow_mut().next(now_us);
        let Some(body) = body else {
            return;
        };
        let cluster = &plugin.settings.cluster;
        let headers = vec![
            (":method", "POST"),
            (":path", SETTLE_PATH),
            (":authority", cluster),
            ("content-type", "application/json"),
            (VM_HEADER, &plugin.vm),
        ];
        match plugin.host.call(cluster, headers, Some(&body), TIMEOUT) {
            Ok(token) => self.sent.set(Some(token)),
            Err(_) => self.answered(plugin, None, now_us),
        }
    }

    /// Whether this is the callout with facts.
    pub fn awaits(&self, token: u32) -> bool {
        self.sent.get() == Some(token)
    }

    /// The callout with facts is over.
    pub fn answered<H: Host>(&self, plugin: &Plugin<H>, body: Option<&[u8]>, now_us: u64) {
        self.sent.set(None);
        self.facts.borrow_mut().answered(body, now_us);
        self.send(plugin, now_us);
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        let facts = self.facts.get_mut().take();
        LEFT.with_borrow_mut(|left| left.extend(facts));
    }
}
