//! Both ports over raw HTTP, byte by byte.

mod access;
mod errors;
mod shutdown;
mod smuggling;
mod status;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::decide::{PolicyHandle, Service};
use sluicegate::policy::StoreAddress;
use sluicegate::server::listen::Listener;
use sluicegate::server::{Access, Listeners, Settings, Stop};
use sluicegate::store::Store;
use sluicegate::telemetry::metrics::Metrics;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::support::has;

const POLICY: &str =
    "limits:\n  per-key: { algorithm: sliding_log, windows: [{ quota: 1, per: 1h }] }\n";
const BODY: &str = r#"{"decisions":[{"checks":[{"limit":"per-key","key":"k"}]}]}"#;
const DECIDE: &str = "POST /v1/decide";
const HOST: &str = "host: 127.0.0.1\r\n";
const JSON: &str = "content-type: application/json\r\n";

/// Starts a sidecar in this process; returns the address for decisions and the admin address.
async fn start() -> (SocketAddr, SocketAddr) {
    start_for(Access::default()).await
}

async fn start_for(access: Access) -> (SocketAddr, SocketAddr) {
    let settings = Settings {
        access,
        ..settings()
    };
    start_until(settings, std::future::pending()).await.0
}

fn settings() -> Settings {
    Settings {
        access: Access::default(),
        max_connections: 64,
        ready_needs_store: false,
        drain: Duration::from_secs(5),
        shutdown_timeout: Duration::from_secs(1),
    }
}

/// Who may ask a sidecar with this admin address, which also has these names.
fn access_to(address: &str, names: &[&str]) -> Access {
    let names = names.iter().map(|&name| name.to_owned()).collect();
    Access::to(&address.parse().unwrap(), names)
}

/// Starts a sidecar; returns its admin address.
async fn admin_with(access: Access) -> SocketAddr {
    start_for(access).await.1
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
    let handle = PolicyHandle::load(&path, None, &metrics).unwrap();
    let store = Store::open(&StoreAddress::Memory, Duration::from_secs(1), 1 << 28);
    let service = Arc::new(Service::new(handle, store, metrics));
    let decisions = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ports = (decisions.local_addr().unwrap(), admin.local_addr().unwrap());
    let changed = Arc::new(Notify::new());
    let listeners = Listeners {
        decisions: Listener::Tcp(decisions),
        admin: Listener::Tcp(admin),
    };
    let runtime = Handle::current();
    let running = move || {
        runtime.block_on(sluicegate::server::run(
            service, listeners, settings, changed, stop,
        ));
    };
    (ports, tokio::task::spawn_blocking(running))
}

/// A connection over which these bytes have gone.
fn connect(port: SocketAddr, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(port).unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream
}

/// Sends these bytes; returns the whole answer.
fn exchange(port: SocketAddr, bytes: &str) -> String {
    let mut answer = String::new();
    connect(port, bytes).read_to_string(&mut answer).unwrap();
    answer
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends these bytes; returns the answer in parts.
fn send(port: SocketAddr, bytes: &str) -> Answer {
    let answer = exchange(port, bytes);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Answer {
        status: head[9..12].parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// A request with a body, and the connection closed after it.
fn ask(port: SocketAddr, target: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "{target} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    send(port, &request)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_chunked_body_gets_400_and_not_413() {
    let (port, _) = start().await;
    let decide = |chunks: &str| {
        let head = "POST /v1/decide HTTP/1.1\r\nhost: s\r\nconnection: close\r\n";
        let whole = format!("{head}transfer-encoding: chunked\r\n\r\n{chunks}");
        send(port, &whole)
    };
    for broken in ["zz\r\nx\r\n0\r\n\r\n", "5\r\nabcdefgh\r\n0\r\n\r\n"] {
        let answer = decide(broken);
        assert_eq!(answer.status, 400, "{broken:?}: {}", answer.body);
        has(&answer.body, r#""code":"broken_body","field":"body""#);
    }
    let good = format!("{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    assert_eq!(decide(&good).status, 200);
    let long = " ".repeat((1 << 20) + 1);
    let large = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let answer = decide(&large);
    assert_eq!(answer.status, 413, "{}", answer.body);
    has(&answer.body, "body_too_large");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_host_or_with_two_is_refused() {
    let (port, admin) = start().await;
    for (hosts, expected) in [
        ("", 400),
        ("host: a\r\nhost: b\r\n", 400),
        ("host: a\r\nHost: a\r\n", 400),
        ("host: a\r\n", 200),
    ] {
        for (port, target, body) in [(port, DECIDE, BODY), (admin, "GET /healthz", "")] {
            let answer = ask(port, target, hosts, body);
            assert_eq!(answer.status, expected, "{hosts:?}: {}", answer.body);
        }
    }
    let old = "GET /healthz HTTP/1.0\r\n\r\n";
    assert_eq!(send(admin, old).status, 200, "HTTP/1.0 has no Host");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_the_sidecars_instance_which_changes_with_a_restart() {
    let instance = |port| {
        let body = ask(port, DECIDE, HOST, BODY).body;
        let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
        answer["instance"].as_u64().unwrap()
    };
    let (first, _) = start().await;
    let (second, _) = start().await;
    assert_eq!(instance(first), instance(first));
    assert_ne!(instance(first), instance(second));
    assert!((1..1 << 53).contains(&instance(first)));
}
