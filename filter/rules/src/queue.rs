//! The queue of requests that wait for a verdict, and the callouts in flight. Pure: it decides when a callout leaves,
//! for whom, and who has waited too long; `filter/src/callouts.rs` does it.
//!
//! A request that finds no callout in flight leaves in the next turn of Envoy's event loop, together with all that
//! arrived in the same turn. One that finds a callout in flight waits until that is over, or slow, or until the queue
//! holds a full batch. Every request has a deadline of its own: neither a slow callout nor the absence of later
//! arrivals moves it.
//!
//! Times are microseconds of a clock that does not step.

use std::collections::VecDeque;

/// Requests that may wait; one more is answered as if there were no sidecar.
const MAX_WAITING: usize = 4_096;
/// A callout is slow, and another may leave, after this part of a request's timeout.
const SLOW: u64 = 4;
/// A request with less than this part of its timeout left is not sent any more: its verdict would come too late, and
/// the units that it took would be lost.
const HOPELESS: u64 = 8;
/// How long a request may stay unnoticed past its deadline at most.
const MAX_LOOK_AGAIN_US: u64 = 25_000;

/// What one callout may hold. The sidecar refuses larger bodies as a whole (`sluicegate_protocol`), and a store that
/// answers others waits for it, so these stay well below its bounds.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// Requests.
    pub requests: usize,
    /// Callouts in flight at once.
    pub callouts: usize,
}

impl BatchLimits {
    /// Requests that wait share a callout.
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

/// What a request adds to a callout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Decisions: one for its enforced rules, one for each shadow rule.
    pub decisions: usize,
    /// Checks of all decisions.
    pub checks: usize,
    /// Bytes of JSON, at most.
    pub bytes: usize,
}

impl Load {
    /// The most that several requests may add to one callout. A request that exceeds it by itself leaves alone.
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

/// What becomes of a request that is submitted.
#[derive(Debug, PartialEq, Eq)]
pub enum Submitted<W> {
    /// It waits. If `wake`, the root context has to be woken to send a callout.
    Waits {
        /// No wake-up is pending, and a callout may leave.
        wake: bool,
    },
    /// There is no room.
    Full(W),
}

/// A callout in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalloutId(u64);

/// The next callout.
#[derive(Debug)]
pub struct Batch<W> {
    /// Has to be given to [`CalloutQueue::complete`] when the callout is over, however it ends.
    pub id: CalloutId,
    /// For whom, in order; at least one.
    pub waiters: Vec<W>,
    /// When it is to be given up, microseconds from now: at the deadline of the last of them.
    pub timeout_us: u64,
}

/// Requests that wait, and callouts in flight. `W` is a handle on a request: cheap to clone.
#[derive(Debug)]
pub struct CalloutQueue<W> {
    /// How long a request waits for its verdict.
    timeout_us: u64,
    limits: BatchLimits,
    /// In the order of their arrival, and so of their deadlines.
    waiting: VecDeque<Waiting<W>>,
    in_flight: Vec<InFlight<W>>,
    last_id: u64,
    /// The root context was woken and has not looked yet.
    wakeup_pending: bool,
}

#[derive(Debug)]
struct Waiting<W> {
    deadline_us: u64,
    load: Load,
    who: W,
}

#[derive(Debug)]
struct InFlight<W> {
    id: CalloutId,
    sent_us: u64,
    /// With their deadlines.
    waiters: Vec<(u64, W)>,
}

impl<W: Clone> CalloutQueue<W> {
    /// An empty queue whose requests wait for at most `timeout_us` each.
    pub const fn new(timeout_us: u64, limits: BatchLimits) -> Self {
        Self {
            timeout_us,
            limits,
            waiting: VecDeque::new(),
            in_flight: Vec::new(),
            last_id: 0,
            wakeup_pending: false,
        }
    }

    /// Adds a request.
    pub fn submit(&mut self, now_us: u64, load: Load, who: W) -> Submitted<W> {
        if self.waiting.len() >= MAX_WAITING {
            return Submitted::Full(who);
        }
        self.waiting.push_back(Waiting {
            deadline_us: now_us.saturating_add(self.timeout_us),
            load,
            who,
        });
        Submitted::Waits {
            wake: self.wants_wakeup(now_us),
        }
    }

    /// Whether the root context has to be woken to send a callout; if so, a wake-up counts as pending.
    pub fn wants_wakeup(&mut self, now_us: u64) -> bool {
        let wake = !self.wakeup_pending && self.may_send(now_us);
        self.wakeup_pending |= wake;
        wake
    }

    /// The root context looks: it was woken, or its timer has fired, which makes up for a wake-up that was lost.
    pub const fn woken(&mut self) {
        self.wakeup_pending = false;
    }

    fn may_send(&self, now_us: u64) -> bool {
        let slow_us = self.timeout_us / SLOW;
        let is_slow = |callout: &InFlight<W>| now_us.saturating_sub(callout.sent_us) >= slow_us;
        !self.waiting.is_empty()
            && self.in_flight.len() < self.limits.callouts
            && (self.waiting.len() >= self.limits.requests || self.in_flight.iter().all(is_slow))
    }

    /// The next callout, if one may leave now, for those that wait and are not `done`.
    pub fn next_batch(&mut self, now_us: u64, done: impl Fn(&W) -> bool) -> Option<Batch<W>> {
        if !self.may_send(now_us) {
            return None;
        }
        let mut load = Load::default();
        let mut waiters: Vec<(u64, W)> = Vec::new();
        while waiters.len() < self.limits.requests
            && let Some(next) = self.waiting.front()
        {
            let with_next = load.and(next.load);
            if !waiters.is_empty() && !with_next.fits() {
                break;
            }
            let Some(next) = self.waiting.pop_front() else {
                break;
            };
            if !done(&next.who) {
                load = with_next;
                waiters.push((next.deadline_us, next.who));
            }
        }
        let (last_deadline_us, _) = waiters.last()?;
        let timeout_us = last_deadline_us.saturating_sub(now_us);
        self.last_id += 1;
        let id = CalloutId(self.last_id);
        let batch = Batch {
            id,
            waiters: waiters.iter().map(|(_, who)| who.clone()).collect(),
            timeout_us,
        };
        self.in_flight.push(InFlight {
            id,
            sent_us: now_us,
            waiters,
        });
        Some(batch)
    }

    /// A callout is over: its requests, in the order in which they were sent.
    pub fn complete(&mut self, id: CalloutId) -> Vec<W> {
        let place = self.in_flight.iter().position(|callout| callout.id == id);
        place.map_or_else(Vec::new, |place| {
            let waiters = self.in_flight.swap_remove(place).waiters;
            waiters.into_iter().map(|(_, who)| who).collect()
        })
    }

    /// Those that are to be answered without a verdict, because their time is up or no answer could come in time. Some
    /// may be `done` already; those whose callout is in flight stay in it, since verdicts are told apart by their order.
    pub fn expired(&mut self, now_us: u64) -> Vec<W> {
        let mut expired = Vec::new();
        let hopeless_us = now_us.saturating_add(self.timeout_us / HOPELESS);
        while let Some(first) = self.waiting.front()
            && first.deadline_us <= hopeless_us
        {
            expired.extend(self.waiting.pop_front().map(|first| first.who));
        }
        for callout in &self.in_flight {
            let late = callout
                .waiters
                .iter()
                .take_while(|(deadline_us, _)| *deadline_us <= now_us);
            expired.extend(late.map(|(_, who)| who.clone()));
        }
        expired
    }

    /// After how many microseconds to look again although nothing has happened: `None` while nobody waits.
    pub fn look_again_us(&self) -> Option<u64> {
        let look_again_us = (self.timeout_us / SLOW).clamp(1_000, MAX_LOOK_AGAIN_US);
        (!self.is_idle()).then_some(look_again_us)
    }

    /// Nobody waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests;
