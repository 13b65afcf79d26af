//! A TCP proxy before a store, which can do what networks and hosts do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What becomes of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// They pass, so much later, each way.
    Slow(Duration),
    /// They vanish, both ways, and connections stay open; new ones are accepted and hear nothing.
    Swallow,
    /// The next answer on each connection is cut after its first bytes, and the connection with it; new connections are
    /// treated likewise.
    CutAnswers,
    /// Connections break, and new ones are closed at once.
    Refuse,
}

/// A running proxy; it ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub port: u16,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts one before `port` of this machine.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", crate::process::free_port()))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let mode = watch::Sender::new(Mode::Pass);
        let accepted = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let (modes, count) = (mode.subscribe(), Arc::clone(&accepted));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(connection(client, upstream, modes.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self {
            port,
            mode,
            accepted,
            _tasks: tasks,
        }
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

async fn connection(client: TcpStream, upstream: u16, mut modes: watch::Receiver<Mode>) {
    if *modes.borrow() == Mode::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else {
        return;
    };
    // Both go on a wire of their own: small messages must not wait for acknowledgements.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, modes.clone(), false) => {}
        () = pump(from_server, to_client, modes.clone(), true) => {}
        _ = modes.wait_for(|mode| *mode == Mode::Refuse) => {}
    }
}

/// Passes bytes on, as the mode of the moment says.
async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    modes: watch::Receiver<Mode>,
    answers: bool,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let passed = &bytes[..read];
        let mode = *modes.borrow();
        match mode {
            Mode::Pass | Mode::Refuse => {}
            Mode::Slow(by) => tokio::time::sleep(by).await,
            Mode::Swallow => continue,
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
