//! S12: the sidecar's shutdown, whatever its clients do.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sluicegate::server::{Settings, Stop};
use tokio::sync::oneshot;

use super::{BODY, DECIDE, HOST, ask, connect, settings, start_until};
use crate::support::comes_true;

fn with_drain(drain: Duration) -> Settings {
    Settings {
        drain,
        ..settings()
    }
}

/// A question whose connection stays open.
fn question() -> String {
    let length = BODY.len();
    format!("{DECIDE} HTTP/1.1\r\nhost: s\r\ncontent-length: {length}\r\n\r\n{BODY}")
}

/// Reads an answer with a body; returns whether it closes the connection.
fn answered(stream: &mut TcpStream) -> bool {
    let (mut answer, mut bytes) = (String::new(), [0; 4096]);
    while !answer.ends_with("}]}") {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{answer}");
        answer += std::str::from_utf8(&bytes[..read]).unwrap();
    }
    answer.contains("connection: close")
}

/// Longer than any test, on a machine that stalls.
const LONG: Duration = Duration::from_mins(5);

#[tokio::test(flavor = "multi_thread")]
async fn readyz_reports_a_drain_at_once_and_requests_are_served_until_its_end() {
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap() };
    let ((port, admin), running) = start_until(with_drain(LONG), stopped).await;
    let mut kept = connect(port, &question());
    assert!(!answered(&mut kept));
    let ready = || ask(admin, "GET /readyz", HOST, "");
    assert_eq!(ready().status, 200);
    stop.send(Stop::AfterDrain).unwrap();
    assert!(comes_true(|| ready().status == 503));
    assert!(ready().body.contains("draining"));
    // The next answer on an old connection closes it, so that its client can go to another sidecar. A new connection
    // is kept, because its client has no other sidecar.
    kept.write_all(question().as_bytes()).unwrap();
    assert!(answered(&mut kept));
    let mut new = connect(port, &question());
    assert!(!answered(&mut new));
    new.write_all(question().as_bytes()).unwrap();
    assert!(!answered(&mut new));
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sidecar_ends_with_its_drain_and_not_before() {
    let drain = Duration::from_millis(200);
    let began = Instant::now();
    let stopped = async { Stop::AfterDrain };
    let (_, running) = start_until(with_drain(drain), stopped).await;
    running.await.unwrap();
    assert!(began.elapsed() >= drain, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_and_idle_connections_do_not_delay_the_shutdown() {
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap() };
    // A drain this long would be noticed; WithoutDrain skips it.
    let ((port, admin), running) = start_until(with_drain(LONG), stopped).await;
    let half = question();
    let _held = [
        connect(port, ""),
        connect(port, "POST /v1/dec"),
        connect(port, &half[..half.len() - 5]),
        connect(admin, "GET /metrics HTTP/1.1\r\n"),
    ];
    // All of them have been accepted.
    ask(port, DECIDE, HOST, "");
    ask(admin, "GET /readyz", HOST, "");
    stop.send(Stop::WithoutDrain).unwrap();
    let ended = tokio::time::timeout(LONG / 2, running).await;
    ended.expect("it ends in time").unwrap();
}
