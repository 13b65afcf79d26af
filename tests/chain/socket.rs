//! The sidecar behind a Unix socket.

use serde_json::json;
use sluicegate_tests::envoy::{Envoy, SIDECAR, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{per_key, policy, pushed, with_rules};

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_on_a_unix_socket_is_asked_there_and_can_be_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("decisions.sock");
    let policy = with_rules(&policy("memory", "sliding_log", 3, "1h"), &per_key("deny"));
    let mut sidecar = Sidecar::with(&policy).socket(&socket).alone().await;
    let envoy = Envoy::asking(0)
        .plugin(pushed())
        .patch(|config| *at(config, SIDECAR) = json!({ "pipe": { "path": socket } }))
        .alone()
        .await;
    for status in [200, 200, 200, 429] {
        assert_eq!(envoy.status("/", "k").await, status);
    }
    // A killed sidecar leaves its socket file behind; the next one replaces it.
    sidecar.kill();
    assert!(socket.exists());
    sidecar.restart().await;
    eventually("it is asked again", async || {
        envoy.status("/", "other").await == 200
    })
    .await;
}
