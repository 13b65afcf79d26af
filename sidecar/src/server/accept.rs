//! Accepts connections and serves HTTP/1.1 on them, with what axum's own loop lacks: limits on the number of
//! clients and on the time that each may take, and a shutdown that no client can delay.

use std::convert::Infallible;
use std::fmt::Arguments;
use std::io;
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
use rustix::net::sockopt::set_socket_send_buffer_size;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::warn;

use super::connection::Connection;
use super::connections::Connections;
use super::listen::Listener;
use super::phase::{Phase, stopping};
use super::stream::{RecordedStream, Socket};
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
    /// Its connections are served on the thread that accepts them, of a `LocalSet`.
    pub aside: bool,
    /// How long a connection may be idle.
    pub idle: Duration,
    /// Most bytes of a request's head, and of one read of a body.
    pub max_head_bytes: usize,
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Socket>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Each answer is one write; without this, the next one might wait for the client's acknowledgement.
                stream.set_nodelay(true)?;
                set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
                Ok(Box::new(stream))
            }
            Self::Unix(_, listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Serves until the last phase, then waits for requests in progress for at most this long.
pub(super) async fn serve(
    listener: Listener,
    port: Port,
    mut phases: watch::Receiver<Phase>,
    shutdown_timeout: Duration,
) {
    let mut connections = Connections::new(port.max_connections, port.aside);
    let graceful = GracefulShutdown::new();
    // Each has its own: one problem must not hide another.
    let (mut at_max, mut refused) = (Throttle::default(), Throttle::default());
    let mut checks = interval(CLOSE_OVERDUE_EVERY);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_phase = phases.clone();
    loop {
        tokio::select! {
            () = stopping(&mut last_phase) => break,
            _ = checks.tick() => connections.close_overdue(clock::now_us(), port.idle),
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let connection = Arc::new(Connection::opened(clock::now_us()));
                    // Connections accepted from now on start in this phase.
                    phases.mark_unchanged();
                    let stream = RecordedStream { stream, connection: Arc::clone(&connection) };
                    let served = serve_connection(stream, &port, phases.clone(), graceful.watcher());
                    if let Some(closed) = connections.admit(connection, served) {
                        let max = port.max_connections;
                        report(&port, &mut at_max, format_args!("a connection above the maximum of {max}: {closed}"));
                    }
                }
                // The client closed the connection before it was accepted.
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    report(&port, &mut refused, format_args!("cannot accept a connection: {error}"));
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
fn serve_connection(
    stream: RecordedStream,
    port: &Port,
    phases: watch::Receiver<Phase>,
    watcher: Watcher,
) -> impl Future<Output = ()> + Send + use<> {
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

/// Logs a problem of a port's listener, at a limited rate.
fn report(port: &Port, throttle: &mut Throttle, problem: Arguments<'_>) {
    if let Some(times) = throttle.occurred(clock::now_us()) {
        warn!(listener = port.name, times, "{problem}");
    }
}
