//! A TCP proxy in front of a store, which can fail as networks and hosts do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happens to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forwarded.
    Pass,
    /// Forwarded after this delay, each way.
    Slow(Duration),
    /// Dropped, both ways. Connections stay open, and stay silent even in another mode, because a stream with a gap is
    /// useless; new ones are accepted and get no answer.
    Swallow,
    /// A client that sends these bytes is disconnected instead of getting the answer.
    CutAfter(&'static str),
    /// The next answer on each connection is cut after its first bytes, and the connection closed; also on new
    /// connections.
    CutAnswers,
    /// The way of the answers is closed, while requests are still forwarded; also on new connections.
    HalfClose,
    /// The first byte of what each answer brings is another.
    Corrupt,
    /// Each answer has a bit in it that is another, in a place that differs from answer to answer.
    FlipBits,
    /// The protocol of the answers is valid, and their bulk strings have other bytes.
    Garble,
    /// Connections are closed, and new ones at once.
    Refuse,
}

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Its port.
    pub port: u16,
    mode: watch::Sender<Mode>,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    upstream: AtomicU16,
    accepted: AtomicU64,
    cut: AtomicU64,
}

impl Proxy {
    /// Starts one in front of `upstream`, a port of this machine.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", crate::process::free_port()))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let mode = watch::Sender::new(Mode::Pass);
        let shared = Arc::new(Shared::default());
        shared.upstream.store(upstream, Ordering::Relaxed);
        let mut tasks = JoinSet::new();
        let (modes, inner) = (mode.subscribe(), Arc::clone(&shared));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                inner.accepted.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection(client, Arc::clone(&inner), modes.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            port,
            mode,
            shared,
            _tasks: tasks,
        }
    }

    /// Changes the mode.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections that [`Mode::CutAfter`] has cut.
    pub fn cut(&self) -> u64 {
        self.shared.cut.load(Ordering::Relaxed)
    }

    /// New connections lead to another port; old ones stay.
    pub fn lead_to(&self, upstream: u16) {
        self.shared.upstream.store(upstream, Ordering::Relaxed);
    }

    /// The `store` of a policy that uses the Redis behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn connection(client: TcpStream, shared: Arc<Shared>, mut modes: watch::Receiver<Mode>) {
    if *modes.borrow() == Mode::Refuse {
        return;
    }
    let upstream = shared.upstream.load(Ordering::Relaxed);
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else {
        return;
    };
    // Without Nagle's algorithm: small messages must not wait for acknowledgements.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let doomed = AtomicBool::new(false);
    let upwards = pump(from_client, to_server, modes.clone(), false, &doomed);
    let downwards = pump(from_server, to_client, modes.clone(), true, &doomed);
    tokio::select! {
        () = upwards => {}
        () = downwards => if doomed.load(Ordering::Relaxed) {
            shared.cut.fetch_add(1, Ordering::Relaxed);
        },
        _ = modes.wait_for(|mode| *mode == Mode::Refuse) => {}
    }
}

/// Waits until answers end.
async fn closed(modes: &mut watch::Receiver<Mode>) {
    let _ = modes.wait_for(|mode| *mode == Mode::HalfClose).await;
}

/// Forwards bytes according to the current mode.
async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    modes: watch::Receiver<Mode>,
    answers: bool,
    doomed: &AtomicBool,
) {
    let mut bytes = vec![0; 64 << 10];
    // Where the next bit is flipped: a number without a pattern, and the same in every run.
    let mut place: usize = 1;
    let mut half = modes.clone();
    loop {
        let read = tokio::select! {
            read = from.read(&mut bytes) => Some(read),
            () = closed(&mut half), if answers => None,
        };
        let Some(read) = read else {
            // Ends this direction only.
            drop(to);
            return std::future::pending().await;
        };
        let Ok(read @ 1..) = read else { return };
        let mode = *modes.borrow();
        match mode {
            Mode::Corrupt if answers => bytes[0] = b'?',
            Mode::FlipBits if answers => {
                place = place.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                bytes[(place >> 8) % read] ^= 1 << (place >> 4 & 7);
            }
            Mode::Garble if answers => garble(&mut bytes[..read]),
            _ => {}
        }
        let passed = &bytes[..read];
        match mode {
            Mode::Pass
            | Mode::Refuse
            | Mode::HalfClose
            | Mode::Corrupt
            | Mode::FlipBits
            | Mode::Garble => {}
            Mode::Slow(by) => tokio::time::sleep(by).await,
            Mode::Swallow => std::future::pending().await,
            Mode::CutAfter(_) if answers => {
                if doomed.load(Ordering::Relaxed) {
                    return;
                }
            }
            Mode::CutAfter(mark) => {
                if passed
                    .windows(mark.len())
                    .any(|bytes| bytes == mark.as_bytes())
                {
                    doomed.store(true, Ordering::Relaxed);
                }
            }
            Mode::CutAnswers if answers => {
                let _ = to.write_all(&passed[..read.min(3)]).await;
                return;
            }
            Mode::CutAnswers => {}
        }
        if to.write_all(passed).await.is_err() {
            return;
        }
    }
}

/// Overwrites the bulk strings of answers, the first of which begins here; they are short enough to arrive at once.
fn garble(answers: &mut [u8]) {
    let mut rest = answers;
    while let Some(end) = rest.windows(2).position(|bytes| bytes == b"\r\n") {
        let (line, after) = rest.split_at_mut(end + 2);
        let length = match line {
            [b'$', digits @ .., _, _] => str::from_utf8(digits).ok().and_then(|n| n.parse().ok()),
            _ => None,
        };
        let length = length.unwrap_or(0).min(after.len());
        let (bulk, after) = after.split_at_mut(length);
        bulk.fill(b'x');
        rest = after;
    }
}
