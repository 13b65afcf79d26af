//! How a sidecar ends: it drains while its Envoy is served, and nobody delays it.

use sluicegate_tests::client::get;
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{envoy, generous, per_key, plugin, sent};

/// The rule denies without a verdict, so that a lost verdict is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_gets_every_verdict_while_its_sidecar_drains_and_a_second_signal_ends_that() {
    let mut sidecar = Sidecar::with(&generous())
        .arguments(&["--drain", "10m"])
        .alone()
        .await;
    let envoy = envoy(sidecar.port, plugin(per_key("deny"))).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    sidecar.signal("TERM");
    let ready = sidecar.admin("/readyz");
    eventually("it is unready", async || get(&ready).await.0 == 503).await;
    for served in 0..50 {
        let ask = |key| envoy.status("/", key);
        let statuses = tokio::join!(ask("a"), ask("b"), ask("c"));
        assert_eq!(statuses, (200, 200, 200), "after {served}: {}", envoy.log());
    }
    let _half = sent(sidecar.port, "POST /v1/de").await;
    sidecar.signal("TERM");
    sidecar.wait().await;
    let log = sidecar.log();
    let says = "a second signal: requests in progress were aborted";
    assert!(log.contains(says), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_skips_the_drain_and_a_half_sent_request_does_not_delay_shutdown() {
    for signal in ["INT", "TERM"] {
        let drain = if signal == "INT" { "10m" } else { "100ms" };
        let more = ["--drain", drain, "--shutdown-timeout", "500ms"];
        let mut sidecar = Sidecar::with(&generous()).arguments(&more).alone().await;
        let _half = sent(sidecar.port, "POST /v1/de").await;
        sidecar.signal(signal);
        sidecar.wait().await;
        assert!(
            !sidecar.log().contains("a second signal: requests"),
            "{}",
            sidecar.log()
        );
    }
}
