//! A server that speaks Redis's protocol and answers what a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_tests::process::free_port;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A running one; it ends when it is dropped.
pub struct Fake {
    /// Its port.
    pub port: u16,
    written: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

/// What it answers to a command, given by its first two words in upper case: some bytes, and then so many `x`.
pub type Answer = (Vec<u8>, usize);

impl Fake {
    /// Starts one. Where `answer` has none it says OK.
    pub async fn start(
        port: u16,
        answer: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let (answer, written) = (Arc::new(answer), Arc::<AtomicU64>::default());
        let mut tasks = JoinSet::new();
        let count = Arc::clone(&written);
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
                clients.spawn(async move {
                    // It ends with the client's connection.
                    let _ = serve(stream, &*answer, &count).await;
                });
            }
        });
        Self {
            port,
            written,
            _tasks: tasks,
        }
    }

    /// Starts one on a port of its own.
    pub async fn start_anywhere(
        answer: impl Fn(&str) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        Self::start(free_port(), answer).await
    }

    /// Bytes of all answers so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

async fn serve(
    stream: TcpStream,
    answer: &(dyn Fn(&str) -> Option<Answer> + Send + Sync),
    written: &AtomicU64,
) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut words = Vec::new();
        for _ in 0..number(&mut reader).await? {
            let length = number(&mut reader).await?;
            let mut word = vec![0; length + 2];
            reader.read_exact(&mut word).await?;
            word.truncate(length);
            words.push(String::from_utf8_lossy(&word).to_uppercase());
        }
        words.truncate(2);
        let (head, mut tail) = answer(&words.join(" ")).unwrap_or_else(|| (b"+OK\r\n".into(), 0));
        writer.write_all(&head).await?;
        written.fetch_add(head.len() as u64, Ordering::Relaxed);
        let much = vec![b'x'; 1 << 20];
        while tail > 0 {
            let sent = writer.write(&much[..tail.min(much.len())]).await?;
            written.fetch_add(sent as u64, Ordering::Relaxed);
            tail -= sent;
        }
    }
}

/// The number in a line, after its first byte.
async fn number(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    let number = line.trim_end().get(1..).and_then(|line| line.parse().ok());
    number.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}
