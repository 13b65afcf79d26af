//! The sidecar behind a Unix socket.

use serde_json::json;
use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::envoy::{Envoy, SIDECAR, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::wire;

use super::support::{per_key, plugin, policy};

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_on_a_unix_socket_is_asked_there_and_can_be_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("decisions.sock");
    let policy = policy("memory", "fixed_window", 3, "1h");
    let mut sidecar = Sidecar::with(&policy)
        .socket(&socket)
        .start(folder.path())
        .await;
    let envoy = Envoy::asking(0)
        .upstream(wire::upstream().await)
        .plugin(plugin(per_key("deny")))
        .patch(|config| *at(config, SIDECAR) = json!({ "pipe": { "path": socket } }))
        .start(folder.path())
        .await;
    for status in [200, 200, 200, 429] {
        let answer = status_for(&client(), &envoy.url("/"), "k").await;
        assert_eq!(answer, Some(status));
    }
    // A killed sidecar leaves its socket file behind; the next one replaces it.
    sidecar.kill();
    assert!(socket.exists());
    sidecar.restart().await;
    eventually("it is asked again", async || {
        status_for(&client(), &envoy.url("/"), "other").await == Some(200)
    })
    .await;
}
