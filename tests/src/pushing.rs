//! Rules for filters whose sidecar has none: a fake one, or one whose policy a test does not care about. It stands before the
//! sidecar, answers the filters' requests for rules, and passes all other requests on, byte by byte.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::document::document;

/// Starts it before the sidecar on this port; returns its own.
///
/// # Panics
/// There is no free port.
pub async fn before(sidecar: u16, rules: &Value) -> u16 {
    let rules = rules.as_array().expect("a list of rules");
    let document: Arc<str> = document(json!({ "set": "s" }), rules).into();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(connection(client, sidecar, Arc::clone(&document)));
        }
    });
    port
}

/// `None` when a peer has closed.
async fn connection(client: TcpStream, sidecar: u16, document: Arc<str>) -> Option<()> {
    let (mut from, to) = client.into_split();
    // Its answers are copied meanwhile.
    let to = Arc::new(Mutex::new(to));
    let mut behind: Option<OwnedWriteHalf> = None;
    loop {
        let request = request(&mut from).await?;
        if !request.starts_with(b"GET /v1/rules ") {
            if behind.is_none() {
                let stream = TcpStream::connect(("127.0.0.1", sidecar)).await.ok()?;
                let (answers, questions) = stream.into_split();
                tokio::spawn(answered(answers, Arc::clone(&to)));
                behind = Some(questions);
            }
            behind.as_mut()?.write_all(&request).await.ok()?;
        } else if String::from_utf8_lossy(&request).contains(r#""in_force""#) {
            // There are no others: until the filter gives up.
            let _ = from.read_u8().await;
            return None;
        } else {
            // Its next request may come on a connection on which a sidecar would not expect it.
            let length = document.len();
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
            let answer = head + &document;
            return to.lock().await.write_all(answer.as_bytes()).await.ok();
        }
    }
}

/// Copies answers until the sidecar closes.
async fn answered(mut answers: OwnedReadHalf, to: Arc<Mutex<OwnedWriteHalf>>) {
    let mut bytes = Vec::with_capacity(16 * 1024);
    while let Ok(1..) = answers.read_buf(&mut bytes).await {
        if to.lock().await.write_all(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
    let _ = to.lock().await.shutdown().await;
}

/// A whole request, as it was sent.
async fn request(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
            let mut lines = head.lines();
            let length = lines.find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if read.len() >= end + 4 + length.unwrap_or(0usize) {
                return Some(read);
            }
        }
        if from.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}
