//! A real OpenTelemetry Collector reads the sidecar's spans: `make collector`. A target of its own, because the
//! collector has to be built with Go (`tests/setup collector`) and `make test` does not need it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test is meant to panic when it fails"
)]

use std::process::Command;

use serde_json::json;
use sluicegate_tests::client::post;
use sluicegate_tests::process::{Process, eventually, free_port, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// A key that no span may contain.
const KEY: &str = "a-key-that-is-a-secret";

/// A span that the collector reads as the parent of `decide`.
const PARENT: &str = "b7b7b7b7b7b7b7b7";

/// Starts the collector with an OTLP receiver on `port`, which logs the spans that it receives.
async fn start_collector(folder: &std::path::Path, port: u16) -> Process {
    let config = json!({
        "receivers": { "otlp": { "protocols": { "http": { "endpoint": format!("127.0.0.1:{port}") } } } },
        "exporters": { "debug": { "verbosity": "detailed" } },
        "service": {
            "telemetry": { "metrics": { "level": "none" } },
            "pipelines": { "traces": { "receivers": ["otlp"], "exporters": ["debug"] } },
        },
    });
    let file = folder.join("collector.yaml");
    std::fs::write(&file, config.to_string()).unwrap();
    let mut command = Command::new(repository(".tools/otelcol"));
    command.arg("--config").arg(&file);
    let log = folder.join("collector.log");
    let mut collector = Process::start(&mut command, &log, "install it: tests/setup collector");
    collector
        .wait_until("the collector", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port))
                .await
                .is_ok()
        })
        .await;
    collector
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_collector_reads_the_spans() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let collector = start_collector(folder.path(), port).await;
    let redis = Redis::start().await;
    let policy = format!(
        "store: {}\nstore_timeout: 3s\nlimits:\n  per-key: {{ algorithm: sliding_log, windows: [{{ quota: 1, per: 1h }}] }}\n",
        redis.url()
    );
    let environment = [
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            format!("http://127.0.0.1:{port}"),
        ),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
    ];
    let sidecar = Sidecar::with(&policy)
        .environment(&environment)
        .start(folder.path())
        .await;
    let decision = json!({
        "checks": [{ "limit": "per-key", "key": KEY }],
        "traceparent": format!("00-{}-{PARENT}-01", "07".repeat(16)),
    });
    let url = sidecar.url("/v1/decide");
    let body = json!({ "decisions": [decision] }).to_string();
    let (status, answer) = post(&url, body).await;
    assert_eq!(status, 200, "{answer}");
    eventually("the collector has read all spans", async || {
        let log = collector.log();
        ["decision", "decide", "queue", "store"].iter().all(|name| {
            let is_name = |line: &str| {
                line.trim().starts_with("Name") && line.ends_with(&format!(": {name}"))
            };
            log.lines().any(is_name)
        })
    })
    .await;
    let log = collector.log();
    assert!(log.contains(PARENT), "the parent's span id: {log}");
    assert!(log.contains("sluicegate.admitted: Int(1)"), "{log}");
    assert!(log.contains("service.name: Str(sluicegate)"), "{log}");
    assert!(!log.contains(KEY));
}
