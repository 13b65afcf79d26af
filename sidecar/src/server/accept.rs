//! Accepts connections and serves HTTP/1.1 on them, with what axum's own loop lacks: bounds on how long a client may
//! take and on how many there are, and an end that no client can put off.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderValue, Request, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::warn;

use super::connection::{Connection, Patience};
use super::connections::{Admitted, Connections, Watched};
use super::listen::{Leftover, Listener};
use super::phase::{Phase, reached};

/// How often clients that have taken too long are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// After the system refused a connection, for want of file descriptors or memory: at once it would refuse again.
const AFTER_A_REFUSAL: Duration = Duration::from_millis(50);

/// Between two lines of the log about the same trouble.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Most bytes of a request's head, and of what is read of a body at a time. Our filter's heads have about 200 bytes; a
/// browser may send the cookies of whatever else runs on this host.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// One of the two faces.
#[derive(Debug)]
pub(super) struct Face {
    /// For the log.
    pub name: &'static str,
    pub router: Router,
    /// Connections at once.
    pub max_connections: usize,
    pub patience: Patience,
}

/// Serves until the last phase, then lets requests under way finish, for this long at most.
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
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    async fn next(&self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;
    async fn next(&self) -> io::Result<Self::Stream> {
        let (stream, _) = self.accept().await?;
        // An answer is written in one go; without this the next one might wait for the client's acknowledgement.
        stream.set_nodelay(true)?;
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
            _ = sweeps.tick() => connections.close_overdue(),
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    // What it has seen so far is what its connections have to be told of no more.
                    phases.mark_unchanged();
                    let (router, phases) = (face.router.clone(), phases.clone());
                    let admitted = connections.admit(|connection, began| {
                        converse(Watched { stream, connection, began }, router, phases)
                    });
                    trouble.at_the_cap(admitted, face.max_connections);
                }
                // The client went before it was let in.
                Err(error) if is_the_clients(&error) => {}
                Err(error) => {
                    trouble.refused(&error);
                    connections.close_a_stranger();
                    sleep(AFTER_A_REFUSAL).await;
                }
            }
        }
    }
    // Its file goes while it still listens: afterwards it may be the file of the process that takes its place.
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
            "closed while they were in use: the shutdown's time was over"
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

/// Serves one connection to its end.
async fn converse<S>(stream: Watched<S>, router: Router, mut phases: watch::Receiver<Phase>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = Arc::clone(&stream.connection);
    let seen = phases.clone();
    let router = TowerToHyperService::new(router);
    let service =
        service_fn(|request: Request<Incoming>| answered(&connection, &seen, router.call(request)));
    let mut served = std::pin::pin!(
        http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    // A client that goes or sends what is no HTTP is none of ours to tell of.
    tokio::select! {
        _ = &mut served => {}
        () = reached(&mut phases, Phase::Stopping) => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

async fn answered(
    connection: &Connection,
    phases: &watch::Receiver<Phase>,
    answer: impl Future<Output = Result<axum::response::Response, Infallible>>,
) -> Result<axum::response::Response, Infallible> {
    connection.asked();
    let mut answer = answer.await?;
    connection.answered();
    // A client with a choice of sidecars comes back elsewhere, without an error. One whose only sidecar this is connects
    // once more: connections that were opened during the drain are not closed by it.
    if phases.has_changed().unwrap_or(true) {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(answer)
}

/// What is wrong with a listener, told now and then.
struct Trouble {
    listener: &'static str,
    told: Option<Instant>,
    untold: u64,
}

impl Trouble {
    const fn of(listener: &'static str) -> Self {
        Self {
            listener,
            told: None,
            untold: 0,
        }
    }

    fn at_the_cap(&mut self, admitted: Admitted, cap: usize) {
        let what = match admitted {
            Admitted::Yes => return,
            Admitted::InPlaceOfAnother => "others make room",
            Admitted::No => "it is closed, as all others wait for answers",
        };
        if let Some(times) = self.times() {
            warn!(
                listener = self.listener,
                times, "a connection over the {cap} that there may be: {what}"
            );
        }
    }

    fn refused(&mut self, error: &io::Error) {
        if let Some(times) = self.times() {
            warn!(
                listener = self.listener,
                times, "no connection can be accepted: {error}"
            );
        }
    }

    /// How often it happened since it was last told, if it is to be told now.
    fn times(&mut self) -> Option<u64> {
        self.untold += 1;
        if self.told.is_some_and(|told| told.elapsed() < SAY_EVERY) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.untold))
    }
}
