//! A request's body, counted as it arrives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connection::Connection;
use super::connections::Connections;

/// The body of a connection's current request.
#[derive(Debug)]
pub(super) struct Arriving {
    body: Incoming,
    connection: Arc<Connection>,
    all: Arc<Connections>,
}

impl Arriving {
    pub fn new(body: Incoming, connection: &Arc<Connection>, all: &Arc<Connections>) -> Self {
        Self {
            body,
            connection: Arc::clone(connection),
            all: Arc::clone(all),
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.connection.body_grew(bytes as u64);
            self.all.count(&self.connection);
        }
        if frame.is_none() || self.body.is_end_stream() {
            self.connection.body_ended();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
