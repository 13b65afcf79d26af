//! A real OpenTelemetry Collector reads the sidecar's spans: its program has to be built
//! with Go (`tests/setup collector`).

use std::process::Command;

use serde_json::json;
use sluicegate_tests::policy::policy;
use sluicegate_tests::process::{Process, eventually, free_port, repository};
use sluicegate_tests::redis::Redis;

use super::traces::traced;

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
    let policy = policy(&redis.url(), "sliding_log", 1, "1h");
    let sidecar = traced(&policy, format!("http://127.0.0.1:{port}")).await;
    let decision = json!({
        "checks": [{ "limit": "per-key", "key": KEY }],
        "traceparent": format!("00-{}-{PARENT}-01", "07".repeat(16)),
    });
    sidecar.answer(json!([decision])).await;
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
