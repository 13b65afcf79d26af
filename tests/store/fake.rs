//! A server that speaks Redis's protocol and answers what a test wants.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A running one; it ends when it is dropped.
pub struct Fake {
    _tasks: JoinSet<()>,
}

impl Fake {
    /// Starts one that answers so to a command, given by its first two words in upper case. Where `answer` has none it says OK.
    pub async fn start(
        port: u16,
        answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let (answer, mut tasks) = (Arc::new(answer), JoinSet::new());
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                clients.spawn(async move {
                    // It ends with the client's connection.
                    let _ = serve(stream, &*answer).await;
                });
            }
        });
        Self { _tasks: tasks }
    }
}

async fn serve(
    stream: TcpStream,
    answer: &(dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync),
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
        let said = answer(&words.join(" ")).unwrap_or_else(|| b"+OK\r\n".into());
        writer.write_all(&said).await?;
    }
}

/// The number in a line, after its first byte.
async fn number(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    let number = line.trim_end().get(1..).and_then(|line| line.parse().ok());
    number.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}
