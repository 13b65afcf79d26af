//! The state of an open connection: whether it is overdue, and which connection to close when there are too many. No
//! clock and no I/O: times are microseconds of a clock that does not step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::micros;

/// How long a client may take from the first byte of a request's head to its last.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// One connection, updated by its reader, its writer and its requests.
#[derive(Debug)]
pub(super) struct Connection {
    opened_us: u64,
    /// When a byte was last received or sent.
    active_us: AtomicU64,
    /// When the current head began; `NONE` between requests.
    head_us: AtomicU64,
    /// A request has been read and its answer has not begun.
    in_request: AtomicBool,
    /// The body of that request is not read to its end.
    in_body: AtomicBool,
    /// At least one answer has begun.
    answered: AtomicBool,
}

const NONE: u64 = u64::MAX;

/// The order in which connections are closed when there are too many, the least first: those that never got an answer, oldest
/// first, since a flood of half-sent requests consists of them; then the others, longest idle first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CloseOrder {
    pub answered: bool,
    since_us: u64,
}

impl Connection {
    pub fn opened(now_us: u64) -> Self {
        Self {
            opened_us: now_us,
            active_us: AtomicU64::new(now_us),
            head_us: AtomicU64::new(NONE),
            in_request: AtomicBool::new(false),
            in_body: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        }
    }

    /// Bytes were received from the client.
    pub fn received(&self, now_us: u64) {
        self.active_us.store(now_us, Ordering::Relaxed);
        // While a request is served, they belong to its body.
        if !self.is_in_request() && self.head_us.load(Ordering::Relaxed) == NONE {
            self.head_us.store(now_us, Ordering::Relaxed);
        }
    }

    /// Bytes were sent to the client.
    pub fn sent(&self, now_us: u64) {
        self.active_us.store(now_us, Ordering::Relaxed);
    }

    /// A whole head has been read. The body counts as unread until the returned value is dropped with it.
    pub fn request_began(self: &Arc<Self>) -> UnreadBody {
        self.head_us.store(NONE, Ordering::Relaxed);
        self.in_body.store(true, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        UnreadBody(Arc::clone(self))
    }

    /// The answer begins.
    pub fn answer_began(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.in_request.store(false, Ordering::Relaxed);
    }

    /// Whether a request is being served.
    pub fn is_in_request(&self) -> bool {
        self.in_request.load(Ordering::Relaxed)
    }

    /// Whether the client has taken too long for a head, or for `idle` no byte has come or gone: between requests, or while
    /// it does not read an answer. A request that is being served has deadlines of its own.
    pub fn is_overdue(&self, now_us: u64, idle: Duration) -> bool {
        if self.is_in_request() {
            return false;
        }
        let longer = |since: u64, limit| now_us.saturating_sub(since) > micros(limit);
        let head_us = self.head_us.load(Ordering::Relaxed);
        (head_us != NONE && longer(head_us, HEAD_WITHIN))
            || longer(self.active_us.load(Ordering::Relaxed), idle)
    }

    /// Its place among those that may be closed; `None` while its client has sent all of a request and waits for the
    /// answer: the sidecar owes it one, for as long as the store may take.
    pub fn close_order(&self) -> Option<CloseOrder> {
        if self.is_in_request() && !self.in_body.load(Ordering::Relaxed) {
            return None;
        }
        let answered = self.answered.load(Ordering::Relaxed);
        Some(CloseOrder {
            answered,
            since_us: if answered {
                self.active_us.load(Ordering::Relaxed)
            } else {
                // Not by its last byte: sending a byte now and then must not protect a connection.
                self.opened_us
            },
        })
    }
}

/// Held by the body of a request, which is dropped when it has been read.
#[derive(Debug)]
pub(super) struct UnreadBody(Arc<Connection>);

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.0.in_body.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const IDLE: Duration = Duration::from_secs(60);

    fn opened(now_us: u64) -> Arc<Connection> {
        Arc::new(Connection::opened(now_us))
    }

    #[test]
    fn a_head_has_a_time_limit_from_its_first_byte_however_slowly_it_trickles() {
        let connection = opened(0);
        // Nothing was sent yet.
        assert!(!connection.is_overdue(50 * SECOND, IDLE));
        for now_us in (50 * SECOND..=60 * SECOND).step_by(100_000) {
            connection.received(now_us);
            assert!(!connection.is_overdue(now_us, IDLE));
        }
        connection.received(60 * SECOND + 1);
        assert!(connection.is_overdue(60 * SECOND + 1, IDLE));
        connection.request_began();
        // It is being served.
        assert!(!connection.is_overdue(500 * SECOND, IDLE));
    }

    #[test]
    fn an_idle_connection_goes_and_one_that_an_answer_runs_through_stays() {
        let connection = opened(0);
        connection.received(1);
        connection.request_began();
        connection.answer_began();
        for now_us in (1..500 * SECOND).step_by(1_000_000) {
            connection.sent(now_us);
            assert!(!connection.is_overdue(now_us, IDLE));
        }
        assert!(connection.is_overdue(499 * SECOND + 1 + 60 * SECOND + 1, IDLE));
    }

    #[test]
    fn who_never_had_an_answer_makes_room_before_who_had() {
        let [kept, unanswered, older, waits] = [5, 9, 7, 1].map(opened);
        for known in [&kept, &waits] {
            known.received(10);
            known.request_began();
            known.answer_began();
        }
        unanswered.received(11);
        older.received(12);
        kept.sent(20);
        waits.received(21);
        let body = waits.request_began();
        assert!(older.close_order() < unanswered.close_order());
        assert!(unanswered.close_order() < kept.close_order());
        assert!(
            kept.close_order() < waits.close_order(),
            "its body is arriving"
        );
        drop(body);
        assert_eq!(waits.close_order(), None);
        // Every command that asks once is new, and its units may be taken already.
        let first = opened(0);
        first.received(1);
        let body = first.request_began();
        assert!(
            first.close_order() < older.close_order(),
            "its body is arriving"
        );
        drop(body);
        assert_eq!(first.close_order(), None);
    }
}
