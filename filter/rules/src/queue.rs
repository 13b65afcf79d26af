//! The queue of requests that wait for a verdict, and the callouts in flight. Pure: it decides when to send a callout,
//! for which requests, and which requests have waited too long; `filter/vm/src/callouts.rs` carries that out.
//!
//! If no callout is in flight, a request is sent in the next turn of Envoy's event loop, together with all requests of
//! the same turn. Otherwise it waits until the callout in flight completes or is slow, or until the queue holds a full
//! batch. Every request has its own deadline, which neither a slow callout nor the absence of later requests extends.
//!
//! Times are microseconds of a clock that does not step.

use std::collections::VecDeque;

use crate::verdict_error::VerdictError;

/// Most requests that may wait; further ones are treated as if there were no sidecar.
const MAX_WAITING: usize = 4_096;
/// Most requests with one limit and key, besides the uncounted ones, so that one client neither fills the queue for others nor
/// gets past its limit by filling it.
const MAX_OF_SUBJECT: usize = MAX_WAITING / 4 - UNCOUNTED;
/// Up to this many waiting requests, limits and keys are not counted: that is nearly always the case, and hashing them is a
/// twentieth of the filter's work for an admission.
const UNCOUNTED: usize = 512;
/// How often, at most, requests whose clients have hung up are removed from a full queue, in microseconds.
const SWEEP_EVERY_US: u64 = 1_000;
/// A callout is slow, and another may be sent, after 1/4 of a request's timeout.
const SLOW_DIVISOR: u64 = 4;
/// A request with less than 1/8 of its timeout left is not sent: its verdict would come too late, and the units that it
/// consumed would be lost.
const TOO_LATE_DIVISOR: u64 = 8;
/// How many times as many callouts may be in flight if the sidecar is slow.
const MORE_IF_SLOW: usize = 4;
/// How many times as many may be in flight if callouts whose clients have all hung up are counted too.
const MORE_WITH_ABANDONED: usize = 16;
/// Longest time by which the timer may miss a deadline, in microseconds.
const MAX_POLL_INTERVAL_US: u64 = 25_000;

/// Bounds on callouts. The sidecar refuses larger bodies as a whole (`sluicegate_protocol`), and large batches delay
/// other users of the store, so these stay well below the protocol's bounds.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Most requests in one callout.
    pub requests: usize,
    /// Most callouts in flight at once: more of them if the sidecar is slow, or all clients of some have hung up.
    pub callouts: usize,
}

impl BatchLimits {
    /// Waiting requests share a callout.
    pub const SHARED: Self = Self {
        requests: 256,
        callouts: 4,
    };
    /// A callout for each request, for comparison.
    pub const SINGLE: Self = Self {
        requests: 1,
        callouts: usize::MAX,
    };
}

/// The load that a request adds to a callout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Decisions: one for all enforced rules, one for each shadow rule.
    pub decisions: usize,
    /// Checks of all decisions.
    pub checks: usize,
    /// Bytes of JSON, at most.
    pub bytes: usize,
}

impl Load {
    /// Most that several requests may add to one callout. A request that exceeds it by itself gets its own callout.
    const MAX: Self = Self {
        decisions: 512,
        checks: 512,
        bytes: 256 * 1_024,
    };

    const fn and(self, other: Self) -> Self {
        Self {
            decisions: self.decisions.saturating_add(other.decisions),
            checks: self.checks.saturating_add(other.checks),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    const fn fits(self) -> bool {
        self.decisions <= Self::MAX.decisions
            && self.checks <= Self::MAX.checks
            && self.bytes <= Self::MAX.bytes
    }
}

/// Identifies a callout in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalloutId(u64);

/// The next callout.
#[derive(Debug)]
pub struct Batch<W> {
    /// Pass it to [`CalloutQueue::complete`] when the callout is over, however it ends.
    pub id: CalloutId,
    /// Its requests, in order; at least one.
    pub waiters: Vec<W>,
    /// Timeout in microseconds: the time until the deadline of its last request.
    pub timeout_us: u64,
}

/// Waiting requests, and callouts in flight. `W` is a handle on a request: cheap to clone.
#[derive(Debug)]
pub struct CalloutQueue<W> {
    /// How long a request waits for its verdict.
    timeout_us: u64,
    limits: BatchLimits,
    /// In order of arrival, and so of deadlines.
    waiting: VecDeque<Waiting<W>>,
    /// When it was last looked through for those that are done.
    swept_us: u64,
    in_flight: Vec<InFlight<W>>,
    last_id: u64,
    /// A wake-up of the root context is pending.
    wakeup_pending: bool,
    /// How long the last answers took.
    took_us: [u64; 4],
}

#[derive(Debug)]
struct Waiting<W> {
    deadline_us: u64,
    load: Load,
    subjects: Vec<u64>,
    who: W,
}

#[derive(Debug)]
struct InFlight<W> {
    id: CalloutId,
    sent_us: u64,
    waiters: Vec<Waiting<W>>,
}

impl<W: Clone> CalloutQueue<W> {
    /// An empty queue whose requests wait for at most `timeout_us` each.
    pub const fn new(timeout_us: u64, limits: BatchLimits) -> Self {
        Self {
            timeout_us,
            limits,
            waiting: VecDeque::new(),
            swept_us: 0,
            in_flight: Vec::new(),
            last_id: 0,
            wakeup_pending: false,
            // Counts as slow until answers show otherwise, so that no request waits behind the first callout.
            took_us: [timeout_us / SLOW_DIVISOR + 1; 4],
        }
    }

    /// Adds a request with these limits and keys; whether the root context has to be woken to send a callout. Those that are
    /// `done` hold no place.
    ///
    /// # Errors
    /// The queue is full, for all or for one of these.
    pub fn submit(
        &mut self,
        now_us: u64,
        (load, subjects): (Load, impl FnOnce() -> Vec<u64>),
        who: W,
        done: impl Fn(&W) -> bool,
    ) -> Result<bool, VerdictError> {
        let is_counted = self.waiting.len() >= UNCOUNTED;
        let subjects = is_counted.then(subjects).unwrap_or_default();
        let mut refusal = self.refusal(&subjects);
        let sweep_us = self.swept_us.saturating_add(SWEEP_EVERY_US);
        if refusal.is_some() && now_us >= sweep_us {
            self.swept_us = now_us;
            self.waiting.retain(|one| !done(&one.who));
            refusal = self.refusal(&subjects);
        }
        if let Some(why) = refusal {
            return Err(why);
        }
        self.waiting.push_back(Waiting {
            deadline_us: now_us.saturating_add(self.timeout_us),
            load,
            subjects,
            who,
        });
        Ok(self.wants_wakeup(now_us, done))
    }

    fn refusal(&self, subjects: &[u64]) -> Option<VerdictError> {
        let is_full = |subject| {
            let has = |one: &&Waiting<W>| one.subjects.contains(subject);
            let same = self.waiting.iter().filter(has);
            same.take(MAX_OF_SUBJECT).count() == MAX_OF_SUBJECT
        };
        if subjects.iter().any(is_full) {
            return Some(VerdictError::SubjectFull);
        }
        (self.waiting.len() >= MAX_WAITING).then_some(VerdictError::Full)
    }

    /// Whether the caller must wake the root context to send a callout; if so, the wake-up counts as pending.
    pub fn wants_wakeup(&mut self, now_us: u64, done: impl Fn(&W) -> bool) -> bool {
        let wake = !self.wakeup_pending && self.may_send(now_us, done);
        self.wakeup_pending |= wake;
        wake
    }

    /// The root context runs: it was woken, or its timer fired, which makes up for a lost wake-up.
    pub const fn woken(&mut self) {
        self.wakeup_pending = false;
    }

    fn may_send(&self, now_us: u64, done: impl Fn(&W) -> bool) -> bool {
        let slow_us = self.timeout_us / SLOW_DIVISOR;
        let is_slow = |callout: &InFlight<W>| now_us.saturating_sub(callout.sent_us) >= slow_us;
        // The others are abandoned: no request waits for them.
        let heeded = || {
            let callouts = self.in_flight.iter();
            callouts.filter(|callout| !callout.waiters.iter().all(|one| done(&one.who)))
        };
        // Requests that wait behind a callout that takes this long would be answered too late.
        let at_once = self.expected_us() > slow_us;
        let times = |more| self.limits.callouts.saturating_mul(more);
        let most = times(if at_once { MORE_IF_SLOW } else { 1 });
        !self.waiting.is_empty()
            && self.in_flight.len() < times(MORE_WITH_ABANDONED)
            && (self.in_flight.len() < most || heeded().count() < most)
            && (at_once || self.waiting.len() >= self.limits.requests || heeded().all(is_slow))
    }

    /// How long an answer takes at least, by the last ones: a single one may be late for a reason that has passed.
    fn expected_us(&self) -> u64 {
        self.took_us.iter().copied().min().unwrap_or(0)
    }

    /// The next callout, if one may be sent now, for the waiting requests that are not `done`.
    pub fn next_batch(&mut self, now_us: u64, done: impl Fn(&W) -> bool) -> Option<Batch<W>> {
        if !self.may_send(now_us, &done) {
            return None;
        }
        let too_late_us = now_us.saturating_add(self.expected_us());
        let first = (self.waiting).partition_point(|one| one.deadline_us < too_late_us);
        let mut load = Load::default();
        let mut waiters: Vec<Waiting<W>> = Vec::new();
        while waiters.len() < self.limits.requests
            && let Some(next) = self.waiting.get(first)
        {
            let with_next = load.and(next.load);
            if !waiters.is_empty() && !with_next.fits() {
                break;
            }
            let Some(next) = self.waiting.remove(first) else {
                break;
            };
            if !done(&next.who) {
                load = with_next;
                waiters.push(next);
            }
        }
        let timeout_us = waiters.last()?.deadline_us.saturating_sub(now_us);
        self.last_id += 1;
        let id = CalloutId(self.last_id);
        let batch = Batch {
            id,
            waiters: waiters.iter().map(|one| one.who.clone()).collect(),
            timeout_us,
        };
        self.in_flight.push(InFlight {
            id,
            sent_us: now_us,
            waiters,
        });
        Some(batch)
    }

    /// Removes a callout that is over, and returns its requests in the order in which they were sent. `answered_us` is when it
    /// was answered, if it was.
    pub fn complete(&mut self, id: CalloutId, answered_us: Option<u64>) -> Vec<W> {
        let index = self.in_flight.iter().position(|callout| callout.id == id);
        index.map_or_else(Vec::new, |index| {
            let callout = self.in_flight.swap_remove(index);
            if let Some(answered_us) = answered_us {
                let took_us = answered_us.saturating_sub(callout.sent_us);
                let [_, third, second, last] = self.took_us;
                // A new request can always be sent.
                self.took_us = [third, second, last, took_us.min(self.timeout_us / 16 * 15)];
            }
            callout.waiters.into_iter().map(|one| one.who).collect()
        })
    }

    /// A callout is about to complete that Envoy timed out, perhaps while the clock stood still: those of its requests that have
    /// more than half of their time left wait again.
    pub fn retry(&mut self, id: CalloutId, now_us: u64) {
        let too_late_us = now_us.saturating_add(self.timeout_us / 2);
        for callout in self.in_flight.iter_mut().filter(|callout| callout.id == id) {
            let has_time = |one: &mut Waiting<W>| one.deadline_us > too_late_us;
            for one in callout.waiters.extract_if(.., has_time) {
                let earlier = |other: &Waiting<W>| other.deadline_us <= one.deadline_us;
                let index = self.waiting.partition_point(earlier);
                self.waiting.insert(index, one);
            }
        }
    }

    /// The requests to conclude without a verdict, because their deadline has passed or no answer could come in time.
    /// Some may be `done` already. Those with a callout in flight stay in it, because verdicts are assigned by order.
    pub fn expired(&mut self, now_us: u64) -> Vec<W> {
        let too_late_us = now_us.saturating_add(self.timeout_us / TOO_LATE_DIVISOR);
        let late = (self.waiting).partition_point(|one| one.deadline_us <= too_late_us);
        let mut expired: Vec<W> = self.waiting.drain(..late).map(|one| one.who).collect();
        for callout in &self.in_flight {
            let late = callout
                .waiters
                .iter()
                .take_while(|one| one.deadline_us <= now_us);
            expired.extend(late.map(|one| one.who.clone()));
        }
        expired
    }

    /// The timer's period in microseconds; `None` while nothing is waiting or in flight.
    pub fn poll_interval_us(&self) -> Option<u64> {
        let poll_interval_us = (self.timeout_us / SLOW_DIVISOR).clamp(1_000, MAX_POLL_INTERVAL_US);
        (!self.is_idle()).then_some(poll_interval_us)
    }

    /// How many wait for a callout, with those whose clients have hung up.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is waiting or in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests;
