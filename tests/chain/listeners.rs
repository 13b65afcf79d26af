//! Hostile clients on a sidecar's ports: a real process with the system's limits.

use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::ask::logs;
use sluicegate_tests::client::{get, post};
use sluicegate_tests::process::{self, eventually};
use sluicegate_tests::sidecar::Sidecar;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UnixStream};

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
        (sidecar.port, "/v1/give-back", "give_backs"),
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
    const SLOW: usize = 300;
    /// What large bodies may take together, on both ports.
    const MOST: u64 = 2 * (32 << 20);
    let sidecar = Sidecar::alone(&generous()).await;
    let mut envoy = Kept::to(sidecar.port).await;
    assert!(envoy.asks().await);
    let before = peak(&sidecar);
    let half = " ".repeat(1 << 19);
    let slow = |path, size| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n{half}"
        )
    };
    let mut held = Vec::new();
    for number in 0..SLOW {
        let mut decisions = Kept::to(sidecar.port).await;
        // Some are clients that have been served.
        assert!(number % 2 == 0 || decisions.asks().await);
        let admin = TcpStream::connect(("127.0.0.1", sidecar.admin_port))
            .await
            .unwrap();
        for (mut stream, path) in [(decisions.0, "/v1/decide"), (admin, "/v1/reset")] {
            // The sidecar may have closed it, and others.
            let _ = stream.write_all(slow(path, 1 << 20).as_bytes()).await;
            held.push(stream);
        }
        if number % 50 == 0 {
            assert!(envoy.asks().await, "{}", sidecar.log());
        }
    }
    assert!(envoy.asks().await, "{}", sidecar.log());
    let body = format!("{half}{}", question());
    let (status, answer) = asked(sidecar.port, "/v1/decide", body).await;
    let outcome = &answer["verdicts"][0]["outcome"];
    assert_eq!((status, outcome), (200, &json!("admitted")));
    let grown = peak(&sidecar) - before;
    assert!(grown < 2 * MOST, "{grown} bytes");
    eventually("both ports say so", async || {
        let log = sidecar.log();
        log.matches("slowest to send").count() == 2
    })
    .await;
}

/// An answer has 190 KB. The system keeps half a megabyte for each client.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_take_bounded_memory() {
    const CLIENTS: usize = 500;
    const MOST: u64 = 32 << 20;
    let _files = many_files().await;
    let sidecar = Sidecar::alone(&generous()).await;
    let mut envoy = Kept::to(sidecar.port).await;
    assert!(envoy.asks().await);
    let unknown = json!({ "checks": [{ "limit": "of-another-policy", "key": "k" }] });
    let body = json!({ "decisions": vec![unknown; 1_024] }).to_string();
    let ask = post_of(&body);
    let url = sidecar.url("/v1/decide");
    let (_, answer) = post(&url, body).await;
    assert!(answer.len() > 1 << 17, "{}", answer.len());
    let before = peak(&sidecar);
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        let socket = TcpSocket::new_v4().unwrap();
        // The system of the other end then takes little.
        socket.set_recv_buffer_size(1 << 12).unwrap();
        let address = ([127, 0, 0, 1], sidecar.port).into();
        let mut stream = socket.connect(address).await.unwrap();
        // The sidecar may have closed it.
        let _ = stream.write_all(ask.repeat(6).as_bytes()).await;
        held.push(stream);
    }
    logs(&sidecar, "slowest to send or to read").await;
    assert!(envoy.asks().await, "{}", sidecar.log());
    let grown = peak(&sidecar) - before;
    println!("grown by {grown}");
    // Answers that wait, bodies that arrive, and what the allocator loses between them. All of it would be 570 MB.
    assert!(grown < 3 * MOST, "{grown} bytes");
}
