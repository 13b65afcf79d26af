//! S12: the sidecar's shutdown, whatever its clients do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sluicegate::server::{Settings, Stop};
use tokio::sync::oneshot;

use super::{BODY, decide, exchange, send, start_until};

fn settings(drain: Duration) -> Settings {
    Settings {
        drain,
        shutdown_timeout: Duration::from_secs(1),
        ..Settings::default()
    }
}

const READY: &str = "GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

fn connect(port: SocketAddr, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(port).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream
}

fn question(connection: &str) -> String {
    let length = BODY.len();
    format!(
        "POST /v1/decide HTTP/1.1\r\nhost: s\r\n{connection}content-length: {length}\r\n\r\n{BODY}"
    )
}

/// Reads an answer with a body; returns whether it closes the connection.
fn answered(stream: &mut TcpStream) -> bool {
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    while !answer.ends_with(b"}]}") {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..read]);
    }
    String::from_utf8(answer)
        .unwrap()
        .contains("connection: close")
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_readyz_reports_a_drain_at_once_and_requests_are_served_until_its_end() {
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap() };
    let drain = Duration::from_secs(3);
    let ((port, admin), running) = start_until(settings(drain), stopped).await;
    let mut kept = connect(port, &question(""));
    assert!(!answered(&mut kept));
    assert_eq!(send(admin, READY).0, 200);
    let began = Instant::now();
    stop.send(Stop::AfterDrain).unwrap();
    let printed = loop {
        let (status, printed) = send(admin, READY);
        if status == 503 {
            break printed;
        }
        assert!(began.elapsed() < drain, "{printed}");
    };
    assert!(printed.contains("draining"), "{printed}");
    // The next answer on an old connection closes it, so that its client can go to another sidecar. A new connection
    // is kept, because its client has no other sidecar.
    kept.write_all(question("").as_bytes()).unwrap();
    assert!(answered(&mut kept));
    let mut new = connect(port, &question(""));
    assert!(!answered(&mut new));
    new.write_all(question("").as_bytes()).unwrap();
    assert!(!answered(&mut new));
    running.await.unwrap();
    assert!(began.elapsed() >= drain, "{:?}", began.elapsed());
    assert!(TcpStream::connect(port).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_half_sent_requests_and_open_pages_do_not_delay_the_shutdown() {
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap() };
    // A drain this long would be noticed; WithoutDrain skips it.
    let ((port, admin), running) = start_until(settings(Duration::from_mins(5)), stopped).await;
    let half = question("");
    let _held = [
        connect(port, ""),
        connect(port, "POST /v1/dec"),
        connect(port, &half[..half.len() - 5]),
        connect(admin, "GET /metrics HTTP/1.1\r\n"),
        connect(
            admin,
            "GET /page/stream HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ),
    ];
    // All of them have been accepted.
    decide(port, "host: s\r\ncontent-length: 0\r\n", "");
    exchange(admin, READY);
    stop.send(Stop::WithoutDrain).unwrap();
    tokio::time::timeout(Duration::from_secs(20), running)
        .await
        .expect("it ends in time")
        .unwrap();
}
