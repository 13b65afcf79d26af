//! The state of an open connection: whether it is overdue, and which connection to close when there are too many. No
//! clock and no I/O: times are milliseconds since the listener started.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
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
    /// When the body of the request began to arrive; `NONE` once it is here, and without one.
    body_ms: AtomicU64,
    /// Bytes of it that are here.
    body_bytes: AtomicU64,
    /// Since when there are answers that the system has not taken, because the client does not read; `NONE` without any.
    unread_ms: AtomicU64,
    /// Their bytes. There may be several: a client may ask again before it reads.
    unread_bytes: AtomicU64,
    /// What [`Self::held_bytes`] was counted as.
    pub counted_bytes: AtomicI64,
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
            body_ms: AtomicU64::new(NONE),
            body_bytes: AtomicU64::new(0),
            unread_ms: AtomicU64::new(NONE),
            unread_bytes: AtomicU64::new(0),
            counted_bytes: AtomicI64::new(0),
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

    /// The system has taken all answers.
    pub fn sent_all(&self) {
        self.unread_bytes.store(0, Ordering::Relaxed);
        self.unread_ms.store(NONE, Ordering::Relaxed);
    }

    /// A whole head has been read, and a body will follow or not.
    pub fn asked(&self, now_ms: u64, with_body: bool) {
        self.asked.store(true, Ordering::Relaxed);
        self.head_ms.store(NONE, Ordering::Relaxed);
        let body_ms = if with_body { now_ms } else { NONE };
        self.body_ms.store(body_ms, Ordering::Relaxed);
    }

    /// More of the request's body has arrived.
    pub fn body_grew(&self, bytes: u64) {
        self.body_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// All of the request's body has arrived.
    pub fn body_ended(&self) {
        self.body_ms.store(NONE, Ordering::Relaxed);
    }

    /// Bytes that the sidecar holds for the client: of its request's body, and of answers.
    pub fn held_bytes(&self) -> u64 {
        let [body, unread] = [&self.body_bytes, &self.unread_bytes];
        body.load(Ordering::Relaxed)
            .saturating_add(unread.load(Ordering::Relaxed))
    }

    /// Since when the client has been sending a body or reading answers, if it is.
    pub fn slow_since_ms(&self) -> Option<u64> {
        let [body, unread] = [&self.body_ms, &self.unread_ms];
        let since_ms = body
            .load(Ordering::Relaxed)
            .min(unread.load(Ordering::Relaxed));
        (since_ms != NONE).then_some(since_ms)
    }

    /// Whether a request is being served.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The answer begins; its body has so many bytes. It may not have waited for the request's.
    pub fn answered(&self, now_ms: u64, bytes: u64) {
        self.body_ended();
        self.body_bytes.store(0, Ordering::Relaxed);
        if bytes > 0 {
            self.unread_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.unread_ms.fetch_min(now_ms, Ordering::Relaxed);
        }
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

    /// Its rank for being closed; `None` while its client waits for an answer, having sent all of the request and read all
    /// answers before: the sidecar owes it something, for as long as the store may take.
    pub fn rank(&self) -> Option<Rank> {
        let since_ms = if self.is_asked() {
            self.slow_since_ms()?
        } else {
            self.active_ms.load(Ordering::Relaxed)
        };
        Some(if self.answered.load(Ordering::Relaxed) {
            (true, since_ms)
        } else {
            // Not by its last byte: sending a byte now and then must not protect a connection.
            (false, self.opened_ms)
        })
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
    fn a_head_has_a_time_limit_from_its_first_byte_however_slowly_it_trickles() {
        let connection = Connection::opened(0);
        // Nothing was sent yet.
        assert!(!connection.is_overdue(50_000, PATIENCE));
        for now_ms in (50_000..=60_000).step_by(100) {
            connection.received(now_ms);
            assert!(!connection.is_overdue(now_ms, PATIENCE));
        }
        connection.received(60_001);
        assert!(connection.is_overdue(60_001, PATIENCE));
        connection.asked(60_001, false);
        // It is being served.
        assert!(!connection.is_overdue(500_000, PATIENCE));
    }

    #[test]
    fn an_idle_connection_goes_and_one_that_an_answer_runs_through_stays() {
        let connection = Connection::opened(0);
        connection.received(1);
        connection.asked(1, false);
        connection.answered(1, 0);
        for now_ms in (1..500_000).step_by(1_000) {
            connection.sent(now_ms);
            assert!(!connection.is_overdue(now_ms, PATIENCE));
        }
        assert!(connection.is_overdue(499_001 + 60_001, PATIENCE));
    }

    #[test]
    fn who_never_had_an_answer_makes_room_before_who_had() {
        let [kept, stranger, older, waits] = [5, 9, 7, 1].map(Connection::opened);
        for known in [&kept, &waits] {
            known.received(10);
            known.asked(10, false);
            known.answered(10, 0);
        }
        stranger.received(11);
        older.received(12);
        kept.sent(20);
        waits.received(21);
        waits.asked(21, true);
        assert!(older.rank() < stranger.rank() && stranger.rank() < kept.rank());
        assert!(kept.rank() < waits.rank(), "its body is arriving");
        waits.body_ended();
        assert_eq!(waits.rank(), None);
        // Every command that asks once is new, and its units may be taken already.
        let first = Connection::opened(0);
        first.received(1);
        first.asked(1, true);
        assert!(first.rank() < older.rank(), "its body is arriving");
        first.body_ended();
        assert_eq!(first.rank(), None);
    }
}
