//! How a sidecar ends: it drains while its Envoy is served, and nobody delays it.

use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::client::{client, get, post, status_for};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::wire;
use tokio::io::AsyncReadExt;

use super::support::{generous, per_key, plugin, question, sent};

#[tokio::test(flavor = "multi_thread")]
async fn s12_sigterm_drains_and_a_second_signal_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::with(&generous())
        .arguments(&["--drain", "10m"])
        .start(folder.path())
        .await;
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let _half = sent(sidecar.port, "POST /v1/de").await;
    assert_eq!(get(&ready).await.0, 200);
    sidecar.signal("TERM");
    eventually("it is unready", async || get(&ready).await.0 == 503).await;
    let (status, answer) = post(&url, question()).await;
    assert!(status == 200 && answer.contains("admitted"), "{answer}");
    sidecar.signal("TERM");
    sidecar.wait().await;
    assert!(
        sidecar
            .log()
            .contains("a second signal: requests in progress were aborted"),
        "{}",
        sidecar.log()
    );
}

/// The rule denies without a verdict, so that a lost verdict is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn s12_an_envoy_gets_every_verdict_while_its_sidecar_drains() {
    let folder = tempfile::tempdir().unwrap();
    let mut sidecar = Sidecar::with(&generous())
        .arguments(&["--drain", "4s"])
        .start(folder.path())
        .await;
    let mut plugin = plugin(per_key("deny"));
    // The drain is tested here, not the deadline.
    plugin["sidecar"]["timeout"] = json!("2s");
    let upstream = wire::upstream().await;
    let envoy = Envoy::asking(sidecar.port)
        .upstream(upstream)
        .plugin(plugin)
        .start(folder.path())
        .await;
    let client = client();
    eventually("it serves", async || {
        status_for(&client, &envoy.url("/"), "k").await == Some(200)
    })
    .await;
    sidecar.signal("TERM");
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    eventually("it is unready", async || get(&ready).await.0 == 503).await;
    let began = Instant::now();
    let mut served = 0;
    while began.elapsed() < Duration::from_secs(2) {
        let url = envoy.url("/");
        let ask = |key| status_for(&client, &url, key);
        let statuses = tokio::join!(ask("a"), ask("b"), ask("c"));
        let all = (Some(200), Some(200), Some(200));
        assert_eq!(statuses, all, "after {served}: {}", envoy.log());
        served += 3;
    }
    assert!(served > 20, "{served}");
    sidecar.wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_ctrl_c_skips_the_drain_and_a_half_sent_request_does_not_delay_shutdown() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let drain = if signal == "INT" { "10m" } else { "100ms" };
        let more = ["--drain", drain, "--shutdown-timeout", "500ms"];
        let mut sidecar = Sidecar::with(&generous())
            .arguments(&more)
            .start(folder.path())
            .await;
        let _half = sent(sidecar.port, "POST /v1/de").await;
        let stream = "GET /page/stream HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let mut page = sent(sidecar.admin_port, stream).await;
        page.read_u8().await.unwrap();
        sidecar.signal(signal);
        sidecar.wait().await;
        assert!(
            !sidecar.log().contains("a second signal: requests"),
            "{}",
            sidecar.log()
        );
    }
}
