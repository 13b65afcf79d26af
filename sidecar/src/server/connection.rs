//! The state of an open connection: whether it is overdue, and which connection to close when there are too many. No
//! clock and no I/O: times are milliseconds since the listener started.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// From the first byte of a request's head to its last.
    pub head: Duration,
    /// Without a byte in either direction, between requests or while the client does not read an answer.
    pub idle: Duration,
}

/// One connection, updated by its reader, its writer and its requests.
#[derive(Debug)]
pub(super) struct Connection {
    opened_ms: u64,
    /// When a byte was last received or sent.
    active_ms: AtomicU64,
    /// When the current head began; `NONE` between requests.
    head_ms: AtomicU64,
    /// A request has been read and its answer has not begun.
    asked: AtomicBool,
    /// At least one answer has begun.
    answered: AtomicBool,
}

const NONE: u64 = u64::MAX;

/// The order in which connections are closed when there are too many: first those that never got an answer, oldest
/// first, since a flood of half-sent requests consists of them; then the others, longest idle first.
pub(super) type Rank = (bool, u64);

impl Connection {
    pub fn opened(now_ms: u64) -> Self {
        Self {
            opened_ms: now_ms,
            active_ms: AtomicU64::new(now_ms),
            head_ms: AtomicU64::new(NONE),
            asked: AtomicBool::new(false),
            answered: AtomicBool::new(false),
        }
    }

    /// Bytes were received from the client.
    pub fn received(&self, now_ms: u64) {
        self.active_ms.store(now_ms, Ordering::Relaxed);
        // While a request is served, they belong to its body.
        if !self.is_asked() && self.head_ms.load(Ordering::Relaxed) == NONE {
            self.head_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Bytes were sent to the client.
    pub fn sent(&self, now_ms: u64) {
        self.active_ms.store(now_ms, Ordering::Relaxed);
    }

    /// A whole head has been read.
    pub fn asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.head_ms.store(NONE, Ordering::Relaxed);
    }

    /// Whether a request is being served.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The answer begins.
    pub fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
        self.asked.store(false, Ordering::Relaxed);
    }

    /// Whether the client has taken too long. A request that is being served has deadlines of its own.
    pub fn is_overdue(&self, now_ms: u64, patience: Patience) -> bool {
        if self.is_asked() {
            return false;
        }
        let longer = |since: u64, limit: Duration| {
            u128::from(now_ms.saturating_sub(since)) > limit.as_millis()
        };
        let head_ms = self.head_ms.load(Ordering::Relaxed);
        (head_ms != NONE && longer(head_ms, patience.head))
            || longer(self.active_ms.load(Ordering::Relaxed), patience.idle)
    }

    /// Its rank for being closed; `None` while a client that got an answer before waits for the next one.
    pub fn rank(&self) -> Option<Rank> {
        if !self.answered.load(Ordering::Relaxed) {
            // Not by its last byte: sending a byte now and then must not protect a connection.
            return Some((false, self.opened_ms));
        }
        (!self.is_asked()).then(|| (true, self.active_ms.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
    };

    #[test]
    fn s11_a_head_has_a_time_limit_from_its_first_byte_however_slowly_it_trickles() {
        let connection = Connection::opened(0);
        assert!(
            !connection.is_overdue(50_000, PATIENCE),
            "nothing was sent yet"
        );
        for now_ms in (50_000..=60_000).step_by(100) {
            connection.received(now_ms);
            assert!(!connection.is_overdue(now_ms, PATIENCE));
        }
        connection.received(60_001);
        assert!(connection.is_overdue(60_001, PATIENCE));
        connection.asked();
        assert!(
            !connection.is_overdue(500_000, PATIENCE),
            "it is being served"
        );
    }

    #[test]
    fn s11_an_idle_connection_goes_and_one_that_an_answer_runs_through_stays() {
        let connection = Connection::opened(0);
        connection.received(1);
        connection.asked();
        connection.answered();
        for now_ms in (1..500_000).step_by(1_000) {
            connection.sent(now_ms);
            assert!(!connection.is_overdue(now_ms, PATIENCE));
        }
        assert!(connection.is_overdue(499_001 + 60_001, PATIENCE));
    }

    #[test]
    fn s11_who_never_had_an_answer_makes_room_before_who_had() {
        let [kept, stranger, older, waits] = [5, 9, 7, 1].map(Connection::opened);
        for known in [&kept, &waits] {
            known.received(10);
            known.asked();
            known.answered();
        }
        stranger.received(11);
        older.received(12);
        kept.sent(20);
        waits.received(21);
        waits.asked();
        assert!(older.rank() < stranger.rank() && stranger.rank() < kept.rank());
        assert_eq!(waits.rank(), None);
    }
}
