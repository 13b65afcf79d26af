//! HTTP/1.1 by hand, for bytes that no library would send: a keep-alive client, and an upstream that does not interpret
//! requests.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest wait for an answer: anything slower counts as hanging.
const DEADLINE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

/// A client with one connection, which it reopens when the peer has closed it.
#[derive(Debug)]
pub struct Wire {
    port: u16,
    stream: Option<TcpStream>,
}

impl Wire {
    /// A client of a port of this machine.
    pub const fn new(port: u16) -> Self {
        Self { port, stream: None }
    }

    /// Sends a request without a body and reads the whole answer; its status, or `None` where the peer closed first.
    ///
    /// # Panics
    /// The answer takes too long.
    pub async fn exchange(&mut self, request: &[u8]) -> Option<u16> {
        // A keep-alive connection may have been closed meanwhile: then try a new one, once.
        let kept = self.stream.is_some();
        let answer = match self.once(request).await {
            None if kept => self.once(request).await,
            answer => answer,
        };
        answer.map(|answer| answer.status)
    }

    /// Opens its connection, so that the first request need not wait for it.
    ///
    /// # Panics
    /// Nobody listens.
    pub async fn connect(&mut self) {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await;
        self.stream = Some(stream.expect("a connection"));
    }

    /// Like `exchange`, but returns the body and does not try again: `None` where the peer closed first.
    ///
    /// # Panics
    /// The answer takes too long.
    pub async fn once(&mut self, request: &[u8]) -> Option<Exchange> {
        let answer = tokio::time::timeout(DEADLINE, self.try_exchange(request));
        answer.await.expect("an answer within the deadline")
    }

    async fn try_exchange(&mut self, request: &[u8]) -> Option<Exchange> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => TcpStream::connect(("127.0.0.1", self.port)).await.ok()?,
        };
        stream.write_all(request).await.ok()?;
        let mut answer = Vec::new();
        let head = read_head(&mut stream, &mut answer).await?;
        let text = String::from_utf8_lossy(answer.get(..head)?).to_ascii_lowercase();
        let status = text.get(9..12)?.parse().ok()?;
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let whole = head + length?;
        while answer.len() < whole {
            if stream.read_buf(&mut answer).await.ok()? == 0 {
                break;
            }
        }
        if answer.len() >= whole && !text.contains("connection: close") {
            self.stream = Some(stream);
        }
        let body = answer.get(head..).unwrap_or_default();
        let body = String::from_utf8_lossy(body).into_owned();
        Some(Exchange { status, body })
    }
}

/// Reads until a head is complete; returns its length.
async fn read_head(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<usize> {
    loop {
        if let Some(end) = read.windows(4).position(|end| end == b"\r\n\r\n") {
            return Some(end + 4);
        }
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
}

/// Starts an upstream that answers every request head with 200; returns its port.
///
/// # Panics
/// There is no free port.
pub async fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut read = Vec::new();
                while let Some(end) = read_head(&mut stream, &mut read).await {
                    read.drain(..end);
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Reads one question of a filter, with a Content-Length body; false when the peer has closed. Answers the announcements that
/// come before it: they come when they are due, and no test should depend on that.
pub async fn read_question(stream: &mut TcpStream) -> bool {
    const EMPTY: &str = r#"{"epoch":1,"verdicts":[]}"#;
    while let Some(request) = read_request(stream).await {
        if !request.contains(r#""decisions":[]"#) {
            return true;
        }
        let length = EMPTY.len();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{EMPTY}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return false;
        }
    }
    false
}

/// Reads one request, in lower case.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    let head = read_head(stream, &mut read).await?;
    let text = String::from_utf8_lossy(read.get(..head)?).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    while read.len() < head + length.unwrap_or(0) {
        match stream.read_buf(&mut read).await {
            Ok(1..) => {}
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&read).to_ascii_lowercase())
}
