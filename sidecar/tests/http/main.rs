//! Both ports over raw HTTP, byte by byte.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test is meant to panic when it fails"
)]

mod access;
mod errors;
mod shutdown;
mod smuggling;
mod status;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::decide::PolicyHandle;
use sluicegate::decide::Service;
use sluicegate::policy::StoreAddress;
use sluicegate::server::listen::Listener;
use sluicegate::server::{Listeners, Settings, Stop};
use sluicegate::store::Store;
use sluicegate::telemetry::metrics::Metrics;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

const POLICY: &str =
    "limits:\n  per-key: { algorithm: sliding_log, windows: [{ quota: 1, per: 1h }] }\n";
const BODY: &str = r#"{"decisions":[{"checks":[{"limit":"per-key","key":"k"}]}]}"#;

/// Starts a sidecar in this process; returns the address for decisions and the admin address.
async fn start() -> (SocketAddr, SocketAddr) {
    start_with(Settings::default()).await
}

async fn start_with(settings: Settings) -> (SocketAddr, SocketAddr) {
    let (ports, _) = start_until(settings, std::future::pending()).await;
    ports
}

/// Starts a sidecar that stops with `stop`; returns its addresses and its task.
async fn start_until(
    settings: Settings,
    stop: impl Future<Output = Stop> + Send + 'static,
) -> ((SocketAddr, SocketAddr), JoinHandle<()>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, POLICY).unwrap();
    let metrics = Metrics::new().unwrap();
    let handle = PolicyHandle::load(&path, &metrics).unwrap();
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1));
    let service = Arc::new(Service::new(handle, store, metrics));
    let [decisions, admin] = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let ports = (decisions.local_addr().unwrap(), admin.local_addr().unwrap());
    let changed = Arc::new(Notify::new());
    let running = tokio::spawn(sluicegate::server::run(
        service,
        Listeners {
            decisions: Listener::Tcp(decisions),
            admin: Listener::Tcp(admin),
        },
        settings,
        changed,
        stop,
    ));
    (ports, running)
}

/// Sends these bytes; returns the whole answer.
fn exchange(port: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(port).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Sends these bytes; returns the status and the body of the answer.
fn send(port: SocketAddr, bytes: &str) -> (u16, String) {
    let answer = exchange(port, bytes);
    let status = answer.get(9..12).unwrap().parse().unwrap();
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    (status, body.to_owned())
}

fn decide(port: SocketAddr, headers: &str, body: &str) -> (u16, String) {
    let head = "POST /v1/decide HTTP/1.1\r\nconnection: close\r\n";
    send(port, &format!("{head}{headers}\r\n{body}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn f20_a_malformed_chunked_body_gets_400_and_not_413() {
    let (port, _) = start().await;
    let chunked = "host: s\r\ntransfer-encoding: chunked\r\n";
    for broken in ["zz\r\nx\r\n0\r\n\r\n", "5\r\nabcdefgh\r\n0\r\n\r\n"] {
        let (status, body) = decide(port, chunked, broken);
        assert_eq!(status, 400, "{broken:?}: {body}");
        assert!(body.contains("broken_body"), "{body}");
    }
    let good = format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    assert_eq!(decide(port, chunked, &good).0, 200);
    let long = " ".repeat((1 << 20) + 1);
    let large = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let (status, body) = decide(port, chunked, &large);
    assert_eq!(status, 413, "{body}");
    assert!(body.contains("body_too_large"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn f20_a_request_without_a_host_or_with_two_is_refused() {
    let (port, admin) = start().await;
    let length = format!("content-length: {}\r\n", BODY.len());
    for (hosts, expected) in [
        ("", 400),
        ("host: a\r\nhost: b\r\n", 400),
        ("host: a\r\nHost: a\r\n", 400),
        ("host: a\r\n", 200),
    ] {
        let (status, body) = decide(port, &format!("{hosts}{length}"), BODY);
        assert_eq!(status, expected, "{hosts:?}: {body}");
        let probe = format!("GET /healthz HTTP/1.1\r\nconnection: close\r\n{hosts}\r\n");
        assert_eq!(send(admin, &probe).0, expected, "{hosts:?}");
    }
    let old = "GET /healthz HTTP/1.0\r\n\r\n";
    assert_eq!(send(admin, old).0, 200, "HTTP/1.0 has no Host");
}

#[tokio::test(flavor = "multi_thread")]
async fn f15_an_answer_names_the_sidecars_instance_which_changes_with_a_restart() {
    let instance = |port| {
        let headers = format!("host: a\r\ncontent-length: {}\r\n", BODY.len());
        let (_, body) = decide(port, &headers, BODY);
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        answer["instance"].as_u64().unwrap()
    };
    let (first, _) = start().await;
    let (second, _) = start().await;
    assert_eq!(instance(first), instance(first));
    assert_ne!(instance(first), instance(second));
    assert!((1..1 << 53).contains(&instance(first)));
}
