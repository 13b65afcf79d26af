//! Hostile clients on a sidecar's ports: a real process with the system's limits.

use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::client::{get, post};
use sluicegate_tests::process;
use sluicegate_tests::sidecar::Sidecar;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::support::{asked, generous, many_files, post_of, question, sent};

/// Several times the limit on open files.
const STRANGERS: usize = 4_000;
const FILES: u32 = 1_024;

/// A client that keeps its connection, as Envoy does.
struct Kept(TcpStream);

impl Kept {
    async fn to(port: u16) -> Self {
        Self(TcpStream::connect(("127.0.0.1", port)).await.unwrap())
    }

    /// Asks for a decision; false if the connection is closed.
    async fn asks(&mut self) -> bool {
        let question = post_of(&question());
        if self.0.write_all(question.as_bytes()).await.is_err() {
            return false;
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"}]}") {
            if !matches!(self.0.read_buf(&mut answer).await, Ok(1..)) {
                return false;
            }
        }
        String::from_utf8(answer).unwrap().contains("admitted")
    }
}

async fn half_requests(port: u16, half: &str) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..STRANGERS {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        // The sidecar may already have closed it, to make room for others.
        let _ = stream.write_all(half.as_bytes()).await;
        held.push(stream);
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_do_not_block_decisions() {
    let _files = many_files().await;
    let sidecar = Sidecar::with(&generous()).files(FILES).alone().await;
    let url = sidecar.url("/v1/decide");
    let health = sidecar.admin("/healthz");
    let mut envoy = Kept::to(sidecar.port).await;
    assert!(envoy.asks().await);
    for (port, half) in [
        (sidecar.admin_port, ""),
        (sidecar.admin_port, "GET /metrics HTTP/1.1\r\nhost: "),
        (
            sidecar.admin_port,
            "POST /v1/reset HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        ),
        (sidecar.port, ""),
        (sidecar.port, "POST /v1/decide HTTP/1.1\r\n"),
        (
            sidecar.port,
            "POST /v1/decide HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\n{",
        ),
    ] {
        let held = half_requests(port, half).await;
        // Served clients keep their connections; new clients and probes are served too.
        assert!(envoy.asks().await, "{half:?}: {}", sidecar.log());
        let (status, answer) = post(&url, question()).await;
        assert!(
            status == 200 && answer.contains("admitted"),
            "{half:?}: {answer}"
        );
        assert_eq!(get(&health).await.0, 200, "{half:?}");
        drop(held);
    }
    let log = sidecar.log();
    assert!(log.contains("an old one is closed"), "{log}");
    assert!(
        log.lines().count() < 20,
        "it is not logged each time: {log}"
    );
}

/// With tokio's own backlog of 128, the 130th waited for a second, and Envoy's connections with it: the system drops what does
/// not fit, and the client asks again after a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_clients_can_wait_to_be_accepted() {
    const WAITING: usize = 1_000;
    let _files = many_files().await;
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s.sock");
    let on_socket = Sidecar::with(&generous()).socket(&socket).alone().await;
    let sidecar = Sidecar::alone(&generous()).await;
    sidecar.signal("STOP");
    on_socket.signal("STOP");
    let connects = async {
        let (mut held, mut on_sockets) = (Vec::new(), Vec::new());
        for _ in 0..WAITING {
            for port in [sidecar.port, sidecar.admin_port] {
                held.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
            }
            on_sockets.push(UnixStream::connect(&socket).await.unwrap());
        }
        (held, on_sockets)
    };
    let held = tokio::time::timeout(Duration::from_secs(60), connects)
        .await
        .expect("all are connected while nobody accepts");
    sidecar.signal("CONT");
    on_socket.signal("CONT");
    assert!(Kept::to(sidecar.port).await.asks().await);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_request_times_out() {
    let sidecar = Sidecar::alone(&generous()).await;
    let mut head = sent(sidecar.port, "POST /v1/de").await;
    let half = "POST /v1/decide HTTP/1.1\r\nhost: s\r\ncontent-length: 9\r\n\r\n{";
    let mut body = sent(sidecar.port, half).await;
    let began = Instant::now();
    let mut answer = String::new();
    let read = async {
        // A closed connection may be reset.
        let _ = head.read_to_string(&mut String::new()).await;
        let _ = body.read_to_string(&mut answer).await;
    };
    tokio::time::timeout(Duration::from_secs(60), read)
        .await
        .expect("both are closed");
    assert!(
        began.elapsed() > Duration::from_secs(5),
        "a slow client has some time"
    );
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
}

/// Its peak resident memory, in bytes.
fn peak(sidecar: &Sidecar) -> u64 {
    process::status(sidecar.id(), "VmHWM") << 10
}

#[tokio::test]
async fn a_megabyte_of_zeros_takes_little_more_than_a_megabyte() {
    let sidecar = Sidecar::alone(&generous()).await;
    // The memory that one request takes anyway.
    let (status, _) = asked(sidecar.port, "/v1/decide", " ".repeat(1 << 20)).await;
    assert_eq!(status, 400);
    let before = peak(&sidecar);
    let zeros = vec!["0"; (1 << 19) - 20].join(",");
    for (port, path, field) in [
        (sidecar.port, "/v1/decide", "decisions"),
        (sidecar.port, "/v1/settle", "settles"),
        (sidecar.admin_port, "/v1/reset", "resets"),
    ] {
        let (status, answer) = asked(port, path, format!("{{\"{field}\":[{zeros}]}}")).await;
        assert_eq!((status, &answer["code"]), (400, &json!("too_many_entries")));
    }
    let grown = peak(&sidecar) - before;
    assert!(grown < 8 << 20, "{grown} bytes for bodies of 1 MB");
}

/// Each of them may send a megabyte, and takes ten seconds for it. (They took as many megabytes as they were.)
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_arrive_slowly_take_bounded_memory() {
    const SLOW: usize = 250;
    let sidecar = Sidecar::alone(&generous()).await;
    let mut envoy = Kept::to(sidecar.port).await;
    assert!(envoy.asks().await);
    let before = peak(&sidecar);
    let half = " ".repeat(1 << 19);
    let lengths = [
        format!("content-length: {}\r\n\r\n{half}", 1 << 20),
        format!(
            "transfer-encoding: chunked\r\n\r\n{:x}\r\n{half}\r\n",
            half.len()
        ),
    ];
    let mut slow = JoinSet::new();
    for number in 0..SLOW {
        for (port, path) in [
            (sidecar.port, "/v1/decide"),
            (sidecar.admin_port, "/v1/reset"),
        ] {
            // The admin port has fewer connections.
            if port == sidecar.port || number < 100 {
                let length = &lengths[number % 2];
                let request = format!(
                    "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}"
                );
                slow.spawn(async move {
                    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let (mut reader, mut writer) = stream.into_split();
                    // The sidecar may close it before it has read this.
                    let _sending = tokio::spawn(async move {
                        let _ = writer.write_all(request.as_bytes()).await;
                        std::future::pending::<()>().await;
                    });
                    let mut status = [0; 12];
                    reader.read_exact(&mut status).await.unwrap();
                    String::from_utf8_lossy(&status).into_owned()
                });
            }
        }
    }
    // Small bodies do not wait for their turn.
    assert!(envoy.asks().await, "{}", sidecar.log());
    while let Some(status) = slow.join_next().await {
        assert_eq!(status.unwrap(), "HTTP/1.1 408");
    }
    // Large ones are read again.
    let body = format!("{half}{}", question());
    let (status, answer) = asked(sidecar.port, "/v1/decide", body).await;
    let outcome = &answer["verdicts"][0]["outcome"];
    assert_eq!((status, outcome), (200, &json!("admitted")));
    let grown = peak(&sidecar) - before;
    println!("grown by {grown}");
    // The bound of docs/sizing.md for both ports. All of it would be 175 MiB.
    assert!(grown < 2 * (32 << 20) + (350 << 16), "{grown} bytes");
}

/// The client of each connection may read its answers as late as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn memory_for_unread_answers_is_bounded_by_the_number_of_connections() {
    const CLIENTS: usize = 400;
    const CONNECTIONS: u64 = 32;
    let sidecar = Sidecar::with(&generous())
        .arguments(&["--max-connections", &CONNECTIONS.to_string()])
        .alone()
        .await;
    // An answer of 190 KB.
    let unknown = json!({ "checks": [{ "limit": "of-another-policy", "key": "k" }] });
    let long = json!({ "decisions": vec![unknown; 1_024] }).to_string();
    let (_, answer) = post(&sidecar.url("/v1/decide"), long.clone()).await;
    assert!(answer.len() > 1 << 17, "{}", answer.len());
    let before = peak(&sidecar);
    let ask = post_of(&long).repeat(6);
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpSocket::new_v4().unwrap();
        // The system of the other end then takes little.
        socket.set_recv_buffer_size(1 << 12).unwrap();
        let address = ([127, 0, 0, 1], sidecar.port).into();
        let mut stream = socket.connect(address).await.unwrap();
        let _ = stream.write_all(ask.as_bytes()).await;
        held.push(stream);
    }
    let (status, answer) = post(&sidecar.url("/v1/decide"), question()).await;
    assert!(status == 200 && answer.contains("admitted"), "{answer}");
    let grown = peak(&sidecar) - before;
    println!("grown by {grown}");
    assert!(grown < 2 * CONNECTIONS * (1 << 20), "{grown} bytes");
}
