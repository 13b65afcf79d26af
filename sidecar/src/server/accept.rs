//! Accepts connections and serves HTTP/1.1 on them, with what axum's own loop lacks: limits on the number of
//! clients and on the time that each may take, and a shutdown that no client can delay.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::warn;

use super::arriving::Arriving;
use super::connection::{Connection, Patience};
use super::connections::{Admitted, Connections, LARGE_BODIES, Watched};
use super::listen::{Leftover, Listener};
use super::phase::{Phase, reached};
use crate::clock;
use crate::telemetry::throttle::Throttle;

/// How often to close overdue connections.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Pause after the system refused a connection for lack of file descriptors or memory: an immediate retry would fail too.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);

/// What the system keeps for a client that does not read, twice: enough for the largest answer. Left alone, it keeps four
/// megabytes for each.
const SEND_BUFFER: usize = 256 << 10;

/// One of the two ports.
#[derive(Debug)]
pub(super) struct Face {
    /// For the log.
    pub name: &'static str,
    pub router: Router,
    /// Most connections at the same time.
    pub max_connections: usize,
    pub patience: Patience,
    /// Most bytes of a request's head, and of one read of a body.
    pub max_head_bytes: usize,
}

/// Serves until the last phase, then waits for requests in progress for at most this long.
pub(super) async fn serve(
    listener: Listener,
    face: Face,
    phases: watch::Receiver<Phase>,
    shutdown_timeout: Duration,
) {
    match listener {
        Listener::Tcp(listener) => run(listener, None, face, phases, shutdown_timeout).await,
        Listener::Unix(listener, leftover) => {
            run(listener, Some(leftover), face, phases, shutdown_timeout).await;
        }
    }
}

trait Accept {
    type Stream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static;
    async fn next(&self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn next(&self) -> io::Result<Self::Stream> {
        let (stream, _) = self.accept().await?;
        // Each answer is one write; without this, the next one might wait for the client's acknowledgement.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;
    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

async fn run(
    listener: impl Accept,
    leftover: Option<Leftover>,
    face: Face,
    mut phases: watch::Receiver<Phase>,
    shutdown_timeout: Duration,
) {
    let connections = Arc::new(Connections::new(face.max_connections, face.patience));
    let mut trouble = Trouble::of(face.name);
    let mut sweeps = interval(SWEEP_EVERY);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = phases.clone();
    loop {
        tokio::select! {
            () = reached(&mut last, Phase::Stopping) => break,
            _ = sweeps.tick() => {
                connections.close_overdue();
                trouble.bodies(connections.take_closed_bodies());
            }
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    // Connections accepted from now on start in this phase.
                    phases.mark_unchanged();
                    let (router, phases) = (face.router.clone(), phases.clone());
                    let (all, head) = (Arc::clone(&connections), face.max_head_bytes);
                    let admitted = connections.admit(|connection| {
                        converse(Watched { stream, connection, all }, head, router, phases)
                    });
                    trouble.at_the_cap(admitted, face.max_connections);
                }
                // The client closed the connection before it was accepted.
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    trouble.refused(&error);
                    connections.close_a_stranger();
                    sleep(AFTER_A_REFUSAL).await;
                }
            }
        }
    }
    // Remove the socket file before closing the socket: afterwards the file may be the successor's.
    drop(leftover);
    drop(listener);
    if timeout(shutdown_timeout, connections.none_left())
        .await
        .is_err()
    {
        let left = connections.close_all();
        warn!(
            listener = face.name,
            connections = left,
            "closed while in use: the shutdown timeout was over"
        );
    }
}

fn is_the_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected,
    };
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted | InvalidInput | NotConnected
    )
}

/// Serves one connection until it closes.
async fn converse<S>(
    stream: Watched<S>,
    max_head_bytes: usize,
    router: Router,
    mut phases: watch::Receiver<Phase>,
) where
    S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
{
    let (connection, all) = (Arc::clone(&stream.connection), Arc::clone(&stream.all));
    let seen = phases.clone();
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        // Now, and not when the answer is first polled: between the two, the body is read.
        connection.asked(all.now_ms(), !request.body().is_end_stream());
        // What follows the last chunk could be a part of this request for a proxy in front, which reads its length otherwise.
        let last = request.headers().contains_key(header::TRANSFER_ENCODING);
        let request = request.map(|body| Arriving::new(body, &connection, &all));
        answered(&connection, &all, &seen, last, router.call(request))
    });
    let mut served = std::pin::pin!(
        http1::Builder::new()
            .max_buf_size(max_head_bytes)
            .serve_connection(TokioIo::new(stream), service)
    );
    // A client that disconnects or does not speak HTTP is not worth a log line.
    tokio::select! {
        _ = &mut served => {}
        () = reached(&mut phases, Phase::Stopping) => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

/// Answers a request, the last one of its connection or not.
async fn answered(
    connection: &Connection,
    all: &Connections,
    phases: &watch::Receiver<Phase>,
    last: bool,
    answer: impl Future<Output = Result<axum::response::Response, Infallible>>,
) -> Result<axum::response::Response, Infallible> {
    let mut answer = answer.await?;
    // A stream of events has no size.
    let bytes = answer.body().size_hint().exact().unwrap_or(0);
    connection.answered(all.now_ms(), bytes);
    all.count(connection);
    // A client with several sidecars connects to another one, without an error. A client with this one only connects
    // again: the drain does not close connections that were opened during it.
    if last || phases.has_changed().unwrap_or(true) {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(answer)
}

/// Logs problems of a listener, each at a limited rate of its own: one must not hide another.
struct Trouble {
    listener: &'static str,
    cap: Throttle,
    bodies: Throttle,
    accept: Throttle,
    /// Clients that were disconnected for their bodies since the last line about it.
    slowest: usize,
}

impl Trouble {
    const fn of(listener: &'static str) -> Self {
        Self {
            listener,
            cap: Throttle::new(),
            bodies: Throttle::new(),
            accept: Throttle::new(),
            slowest: 0,
        }
    }

    fn at_the_cap(&mut self, admitted: Admitted, cap: usize) {
        let what = match admitted {
            Admitted::Yes => return,
            Admitted::InPlaceOfAnother => "an old one is closed",
            Admitted::No => "it is closed, because all others wait for answers",
        };
        if let Some(times) = times(&mut self.cap) {
            warn!(
                listener = self.listener,
                times, "a connection above the maximum of {cap}: {what}"
            );
        }
    }

    fn bodies(&mut self, closed: usize) {
        self.slowest += closed;
        if closed > 0 && times(&mut self.bodies).is_some() {
            warn!(
                listener = self.listener,
                connections = std::mem::take(&mut self.slowest),
                "large bodies took more than {} MiB: clients that were slowest to send or to read them were disconnected",
                LARGE_BODIES >> 20
            );
        }
    }

    fn refused(&mut self, error: &io::Error) {
        if let Some(times) = times(&mut self.accept) {
            warn!(
                listener = self.listener,
                times, "cannot accept a connection: {error}"
            );
        }
    }
}

/// How often something happened since its last line, including this time; `None` if it should not be logged now.
fn times(throttle: &mut Throttle) -> Option<u64> {
    let suppressed = throttle.occurred(clock::now_us())?;
    Some(suppressed + 1)
}
