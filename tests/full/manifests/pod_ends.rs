//! The chart's own Envoy: how long requests may take, and what becomes of them when its pod ends. A real one with the
//! configuration, the arguments and the `preStop` command that the chart renders.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use serde_json::{Value, json};
use sluicegate_tests::client::{answers, client, get};
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::process::{self, Process, eventually, free_port, repository};
use sluicegate_tests::{sidecar, upstream};
use sluicegate_tests_full::chart;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::envoy::local;
use super::scenes::{rendered_with, template, texts};

/// Without the filter there is no sidecar: all of this is Envoy's.
const PLAIN: &str = "filter.enabled: false";

/// The chart's manifests for this `upstream.timeout`.
fn with_timeout(timeout: &str) -> Vec<Value> {
    let timeout = format!("kubernetes.deployment.upstream.timeout: {timeout}");
    rendered_with("kubernetes-deployment.yaml", &[PLAIN, &timeout])
}

/// An Envoy as in a pod, on free ports.
pub struct Pod {
    spec: Value,
    envoy: Process,
    pub port: u16,
    pub admin_port: u16,
    _folder: TempDir,
}

impl Pod {
    pub async fn start(manifests: &[Value], upstream: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = template(manifests)["spec"].take();
        let (port, admin_port) = (free_port(), free_port());
        let mut config = chart::file(manifests, "sluicegate-envoy", "envoy.yaml");
        local(&mut config, [port, admin_port, free_port(), upstream]);
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new(repository(".tools/envoy"));
        for argument in texts(&spec["containers"][0]["args"]) {
            match argument {
                "/etc/envoy/envoy.yaml" => command.arg(&file),
                argument => command.arg(argument),
            };
        }
        let log = folder.path().join("envoy.log");
        let mut envoy = Process::start(&mut command, &log, "install it: tests/setup envoy");
        let ready = format!("http://127.0.0.1:{admin_port}/ready");
        envoy
            .wait_until("envoy", async || answers(&ready).await)
            .await;
        Self {
            spec,
            envoy,
            port,
            admin_port,
            _folder: folder,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ends_answers_what_is_under_way_and_closes_kept_connections() {
    let (release, released) = watch::channel(false);
    let arrived = Arc::new(AtomicUsize::new(0));
    let waiting = Arc::clone(&arrived);
    let router = Router::new().fallback(move |uri: Uri| {
        let is_slow = uri.path() == "/slow";
        waiting.fetch_add(usize::from(is_slow), Ordering::SeqCst);
        let mut released = released.clone();
        async move {
            if !is_slow {
                return "soon";
            }
            released.wait_for(|yes| *yes).await.map(|_| "late").unwrap()
        }
    });
    let manifests = with_timeout("60s");
    let mut pod = Pod::start(&manifests, upstream::serve(router).await).await;

    let (kept, slow) = (client(), pod.url("/slow"));
    let under_way: Vec<_> = (0..4)
        .map(|_| tokio::spawn(client().get(&slow).send()))
        .collect();
    eventually("four requests are under way", async || {
        arrived.load(Ordering::SeqCst) == 4
    })
    .await;
    let closes = async || {
        let answer = kept.get(pod.url("/")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let closes = answer.headers().get("connection").is_some();
        answer.text().await.unwrap();
        closes
    };
    assert!(!closes().await, "a connection is kept");

    // The kubelet runs the hooks of all containers at once, before any of them is told to end.
    let hooks =
        ["initContainers", "containers"].map(|list| &pod.spec[list][0]["lifecycle"]["preStop"]);
    let [sidecars, envoys] = hooks;
    let hook = texts(&sidecars["exec"]["command"]);
    assert_eq!(hook[0], "/usr/local/bin/sluicegate");
    let mut drain = Command::new(sidecar::binary());
    let admin = format!("http://127.0.0.1:{}", pod.admin_port);
    process::run(
        drain.args(&hook[1..]).args(["--envoy-admin", &admin]),
        "make debug",
    );
    assert!(envoys["sleep"]["seconds"].is_number(), "{envoys}");

    // Some clients send new requests until they know that the pod ends.
    for _ in 0..3 {
        assert!(closes().await, "a connection is closed after its answer");
    }
    release.send(true).unwrap();
    for answer in under_way {
        let answer = answer.await.unwrap().expect("an answer");
        assert_eq!(
            (answer.status().as_u16(), answer.text().await.unwrap()),
            (200, "late".to_owned())
        );
    }
    pod.envoy.signal("TERM");
    pod.envoy.wait().await;
}

#[test]
fn a_pod_that_ends_has_time_for_the_longest_request() {
    for (timeout, request, idle, drain) in [
        ("15s", Some("30s"), "300s", 10 + 30 + 15),
        ("0.5s", Some("30s"), "300s", 10 + 30 + 1),
        ("600s", Some("600s"), "630s", 10 + 600 + 600),
        // Any time.
        ("0s", None, "300s", 10 + 300),
    ] {
        let manifests = with_timeout(timeout);
        let spec = template(&manifests)["spec"].take();
        let sleep = &spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"];
        assert_eq!(*sleep, drain, "{timeout}");
        assert_eq!(
            spec["terminationGracePeriodSeconds"],
            drain + 30,
            "{timeout}"
        );
        let mut envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
        let manager = at(&mut envoy, MANAGER);
        assert_eq!(manager["request_timeout"], json!(request), "{timeout}");
        assert_eq!(manager["stream_idle_timeout"], idle, "{timeout}");
    }
}

/// Some clusters give a pod less time; the sidecar needs the last ten seconds.
#[test]
fn a_pod_with_a_shorter_end_serves_until_ten_seconds_before_it() {
    for (grace, drain) in [(40, 30), (60, 50), (65, 55), (300, 55)] {
        let grace_period = format!("kubernetes.deployment.terminationGracePeriodSeconds: {grace}");
        let manifests = rendered_with("kubernetes-deployment.yaml", &[&grace_period]);
        let spec = template(&manifests)["spec"].take();
        assert_eq!(spec["terminationGracePeriodSeconds"], grace);
        let sleep = &spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"];
        assert_eq!(*sleep, drain, "{grace}");
    }
}

/// Longer than the 30 s that a client otherwise has.
#[tokio::test]
async fn an_upload_takes_any_time_where_no_time_is_set() {
    const SECONDS: usize = 33;
    // It answers when it has the whole body.
    let router = Router::new().fallback(async |body: String| body);
    let pod = Pod::start(&with_timeout("0s"), upstream::serve(router).await).await;
    let mut stream = TcpStream::connect(("127.0.0.1", pod.port)).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {SECONDS}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..SECONDS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(b"x").await.unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // It is Envoy that would have refused: it serves on.
    assert_eq!(get(&pod.url("/")).await.0, 200);
}
