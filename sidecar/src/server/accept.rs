//! Accepts connections and serves HTTP/1.1 on them, with what axum's own loop lacks: limits on the number of
//! clients and on the time that each may take, and a shutdown that no client can delay.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::warn;

use super::connection::{ClientTimeouts, Connection};
use super::connections::{Admitted, Connections};
use super::listen::{Listener, SocketListener};
use super::phase::{Phase, stopping};
use super::stream::RecordedStream;
use crate::clock;
use crate::telemetry::throttle::Throttle;

/// How often to close overdue connections.
const CLOSE_OVERDUE_EVERY: Duration = Duration::from_secs(1);

/// Pause after the system refused a connection for lack of file descriptors or memory: an immediate retry would fail too.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);

/// What the system keeps for a client that does not read, twice: enough for the largest answer. Left alone, it keeps four
/// megabytes for each.
const SEND_BUFFER: usize = 256 << 10;

/// One of the two ports.
#[derive(Debug)]
pub(super) struct Port {
    /// For the log.
    pub name: &'static str,
    pub router: Router,
    /// Most connections at the same time.
    pub max_connections: usize,
    pub timeouts: ClientTimeouts,
    /// Most bytes of a request's head, and of one read of a body.
    pub max_head_bytes: usize,
}

/// Serves until the last phase, then waits for requests in progress for at most this long.
pub(super) async fn serve(
    listener: Listener,
    port: Port,
    phases: watch::Receiver<Phase>,
    shutdown_timeout: Duration,
) {
    match listener {
        Listener::Tcp(listener) => accept_all(listener, port, phases, shutdown_timeout).await,
        Listener::Unix(listener) => accept_all(listener, port, phases, shutdown_timeout).await,
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

impl Accept for SocketListener {
    type Stream = tokio::net::UnixStream;
    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.listener.accept().await?.0)
    }
}

async fn accept_all(
    listener: impl Accept,
    port: Port,
    mut phases: watch::Receiver<Phase>,
    shutdown_timeout: Duration,
) {
    let mut connections = Connections::new(port.max_connections);
    let graceful = GracefulShutdown::new();
    let mut log = ListenerLog::of(port.name);
    let mut checks = interval(CLOSE_OVERDUE_EVERY);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_phase = phases.clone();
    loop {
        tokio::select! {
            () = stopping(&mut last_phase) => break,
            _ = checks.tick() => connections.close_overdue(clock::now_us(), port.timeouts),
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    let connection = Arc::new(Connection::opened(clock::now_us()));
                    // Connections accepted from now on start in this phase.
                    phases.mark_unchanged();
                    let stream = RecordedStream { stream, connection: Arc::clone(&connection) };
                    let served = serve_connection(stream, &port, phases.clone(), graceful.watcher());
                    log.admitted(connections.admit(connection, served), port.max_connections);
                }
                // The client closed the connection before it was accepted.
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    log.refused(&error);
                    connections.close_unanswered();
                    sleep(AFTER_A_REFUSAL).await;
                }
            }
        }
    }
    drop(listener);
    if timeout(shutdown_timeout, graceful.shutdown())
        .await
        .is_err()
    {
        warn!(
            listener = port.name,
            connections = connections.left(),
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
fn serve_connection<S>(
    stream: RecordedStream<S>,
    port: &Port,
    phases: watch::Receiver<Phase>,
    watcher: Watcher,
) -> impl Future<Output = ()> + Send + use<S>
where
    S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
{
    let connection = Arc::clone(&stream.connection);
    let router = TowerToHyperService::new(port.router.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        // Now, and not when the answer is first polled: between the two, the body is read.
        let unread = connection.request_began();
        // What follows the last chunk could be a part of this request for a proxy in front, which reads its length otherwise.
        let last = request.headers().contains_key(header::TRANSFER_ENCODING);
        let request = request.map(|body| {
            body.map_err(move |error| {
                // Owned by this closure, and so dropped with the body.
                let _ = &unread;
                error
            })
        });
        answer(
            Arc::clone(&connection),
            phases.clone(),
            last,
            router.call(request),
        )
    });
    let served = http1::Builder::new()
        .max_buf_size(port.max_head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    async move {
        // A client that disconnects or does not speak HTTP is not worth a log line.
        let _ = watcher.watch(served).await;
    }
}

/// Answers a request, the last one of its connection or not.
async fn answer(
    connection: Arc<Connection>,
    phases: watch::Receiver<Phase>,
    last: bool,
    answer: impl Future<Output = Result<Response, Infallible>>,
) -> Result<Response, Infallible> {
    let mut answer = answer.await?;
    connection.answer_began();
    // A client with several sidecars connects to another one, without an error. A client with this one only connects
    // again: the drain does not close connections that were opened during it.
    if last || phases.has_changed().unwrap_or(true) {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(answer)
}

/// Logs problems of a listener, each at a limited rate of its own: one must not hide another.
struct ListenerLog {
    listener: &'static str,
    at_max: Throttle,
    refused: Throttle,
}

impl ListenerLog {
    const fn of(listener: &'static str) -> Self {
        Self {
            listener,
            at_max: Throttle::new(),
            refused: Throttle::new(),
        }
    }

    fn admitted(&mut self, admitted: Admitted, max: usize) {
        let what = match admitted {
            Admitted::Yes => return,
            Admitted::InPlaceOfAnother => "an old one is closed",
            Admitted::No => "it is closed, because all others wait for answers",
        };
        if let Some(times) = times(&mut self.at_max) {
            warn!(
                listener = self.listener,
                times, "a connection above the maximum of {max}: {what}"
            );
        }
    }

    fn refused(&mut self, error: &io::Error) {
        if let Some(times) = times(&mut self.refused) {
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
