//! The open connections of one listener: their maximum number, and which to close when there are too many or one is
//! overdue.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::connection::{Connection, Patience, Rank};

/// A body up to this size is not counted: a filter's question for dozens of requests, which no flood of others may affect.
const SMALL_BODY: i64 = 16 << 10;

/// Most bytes of larger bodies, of requests and of answers that are not sent yet, all together.
pub(super) const LARGE_BODIES: i64 = 32 << 20;

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Connections {
    /// The maximum number.
    cap: usize,
    patience: Patience,
    began: Instant,
    open: Mutex<Open>,
    /// Notified when a connection closes.
    gone: Notify,
    /// Bytes of bodies that are not small. Below 0 for a moment if one is forgotten while it is counted.
    large_bodies: AtomicI64,
    /// Connections that were closed for their bodies, and are not reported yet.
    closed_bodies: AtomicUsize,
}

#[derive(Debug, Default)]
struct Open {
    number: u64,
    by_number: HashMap<u64, (Arc<Connection>, AbortHandle)>,
}

/// The result for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// It is served.
    Yes,
    /// It is served, and another one was closed.
    InPlaceOfAnother,
    /// It was closed: all open ones wait for answers.
    No,
}

impl Connections {
    pub fn new(cap: usize, patience: Patience) -> Self {
        Self {
            cap,
            patience,
            began: Instant::now(),
            open: Mutex::default(),
            gone: Notify::new(),
            large_bodies: AtomicI64::new(0),
            closed_bodies: AtomicUsize::new(0),
        }
    }

    /// Serves a new connection in its own task, closing another one if necessary and possible.
    pub fn admit<F>(self: &Arc<Self>, serve: impl FnOnce(Arc<Connection>) -> F) -> Admitted
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let full = self.open().by_number.len() >= self.cap;
        if full && !self.close_first(|_| true) {
            return Admitted::No;
        }
        let connection = Arc::new(Connection::opened(self.now_ms()));
        let served = serve(Arc::clone(&connection));
        // The lock is held until it is in the list: the task may end at once and remove it.
        let mut open = self.open();
        open.number += 1;
        let listed = Listed {
            number: open.number,
            connection: Arc::clone(&connection),
            all: Arc::clone(self),
        };
        let number = listed.number;
        let task = tokio::spawn(async move {
            let _listed = listed;
            served.await;
        });
        open.by_number
            .insert(number, (connection, task.abort_handle()));
        if full {
            Admitted::InPlaceOfAnother
        } else {
            Admitted::Yes
        }
    }

    /// Closes the oldest connection that never got an answer, if there is one.
    pub fn close_a_stranger(&self) {
        self.close_first(|(answered, _)| !answered);
    }

    /// Closes the first connection in the order of [`Rank`], if there is one.
    fn close_first(&self, of: impl Fn(Rank) -> bool) -> bool {
        self.close_least(|connection| connection.rank().filter(|rank| of(*rank)))
    }

    /// Closes the connection with the least value, if one has any.
    fn close_least<T: Ord>(&self, value: impl Fn(&Connection) -> Option<T>) -> bool {
        let mut open = self.open();
        let valued = open
            .by_number
            .iter()
            .filter_map(|(number, (connection, _))| Some((value(connection)?, *number)));
        let Some((_, number)) = valued.min() else {
            return false;
        };
        let closed = open.by_number.remove(&number);
        drop(open);
        if let Some((connection, task)) = closed {
            task.abort();
            // Now, or what arrives before the task has ended would close others too.
            self.forget(&connection);
        }
        true
    }

    /// Counts what is held for a client now. If that is more than before, and large bodies now take too much together, closes
    /// the connection whose client has been sending or reading a large one for longest: others do that at once.
    pub fn count(&self, connection: &Connection) {
        let after = counted(connection.held_bytes());
        // Nearly always both are 0.
        if connection.counted_bytes.load(Ordering::Relaxed) == after {
            return;
        }
        let more = after - connection.counted_bytes.swap(after, Ordering::Relaxed);
        let all = self.large_bodies.fetch_add(more, Ordering::Relaxed) + more;
        let slowest = |connection: &Connection| {
            let large = counted(connection.held_bytes()) > 0;
            connection.slow_since_ms().filter(|_| large)
        };
        if more > 0 && all > LARGE_BODIES && self.close_least(slowest) {
            self.closed_bodies.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// No longer counts what is held for a client.
    fn forget(&self, connection: &Connection) {
        let bytes = connection.counted_bytes.swap(0, Ordering::Relaxed);
        self.large_bodies.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How many connections were closed for their bodies since the last call.
    pub fn take_closed_bodies(&self) -> usize {
        self.closed_bodies.swap(0, Ordering::Relaxed)
    }

    /// Closes overdue connections.
    pub fn close_overdue(&self) {
        let now_ms = self.now_ms();
        self.close(|connection| connection.is_overdue(now_ms, self.patience));
    }

    /// Closes all connections.
    pub fn close_all(&self) -> usize {
        self.close(|_| true)
    }

    /// Waits until all are closed.
    pub async fn none_left(&self) {
        loop {
            let gone = self.gone.notified();
            if self.open().by_number.is_empty() {
                return;
            }
            gone.await;
        }
    }

    fn close(&self, which: impl Fn(&Connection) -> bool) -> usize {
        let closed: Vec<_> = self
            .open()
            .by_number
            .extract_if(|_, (connection, _)| which(connection))
            .collect();
        for (_, (_, task)) in &closed {
            task.abort();
        }
        closed.len()
    }

    /// Milliseconds since the listener started.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a connection from the list when its task ends, for any reason.
struct Listed {
    number: u64,
    connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let removed = self.all.open().by_number.remove(&self.number);
        // Outside the lock, to hold it as briefly as possible.
        drop(removed);
        // It may have been counted again since it was removed.
        self.all.forget(&self.connection);
        self.all.gone.notify_waiters();
    }
}

/// A stream that reports when bytes are received and sent.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub stream: S,
    pub connection: Arc<Connection>,
    pub all: Arc<Connections>,
}

impl<S: AsyncRead + AsFd + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() && self.connection.is_asked() && has_ended(&self.stream) {
            // Nothing was read: the end. hyper then drops the request.
            return Poll::Ready(Ok(()));
        }
        ready!(read)?;
        if buffer.filled().len() > before {
            self.connection.received(self.all.now_ms());
        }
        Poll::Ready(Ok(()))
    }
}

/// Whether the client has closed the connection. tokio learns that with the system's next report only, which comes after a
/// request that arrived together with its end has been decided. A sidecar that was stopped finds hundreds of those when it
/// continues: their filters have decided without it, and nothing may be taken for them. hyper reads once more after the body
/// and before the request is served, so this is asked in time.
fn has_ended(stream: &impl AsFd) -> bool {
    let mut byte = [MaybeUninit::uninit()];
    match SockRef::from(stream).peek(&mut byte) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.connection.sent(self.all.now_ms());
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.connection.sent(self.all.now_ms());
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes when it has written everything.
        self.connection.sent_all();
        self.all.count(&self.connection);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What so many bytes add to the sum of large bodies.
fn counted(bytes: u64) -> i64 {
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    if bytes > SMALL_BODY { bytes } else { 0 }
}
