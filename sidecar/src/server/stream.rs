//! A connection's bytes: reports when some are received and sent, and when the client has closed the connection.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Connection;
use crate::clock;

/// A socket of TCP, or a Unix socket.
pub(super) trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin + Send> Socket for S {}

/// A socket whose traffic is recorded in its connection's state.
pub(super) struct RecordedStream {
    pub stream: Box<dyn Socket>,
    pub connection: Arc<Connection>,
}

impl AsyncRead for RecordedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() && self.connection.is_in_request() && has_ended(&self.stream) {
            // Nothing was read: the end. hyper then drops the request.
            return Poll::Ready(Ok(()));
        }
        ready!(read)?;
        if buffer.filled().len() > before {
            self.connection.received(clock::now_us());
        }
        Poll::Ready(Ok(()))
    }
}

/// Whether the client has closed the connection. tokio learns that with the system's next report only, which comes after a
/// request that arrived together with its end has been decided. A sidecar that was stopped finds hundreds of those when it
/// continues: their filters have decided without it, and nothing may be taken for them. hyper reads once more after the body
/// and before the request is served, so this is asked in time.
fn has_ended(stream: &impl AsFd) -> bool {
    match recv(stream, &mut [0], RecvFlags::PEEK) {
        Ok((_, received)) => received == 0,
        Err(error) => error == Errno::CONNRESET,
    }
}

impl AsyncWrite for RecordedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.connection.sent(clock::now_us());
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.connection.sent(clock::now_us());
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
