//! Keys from fields of a client's certificate, which Envoy verified.

use serde_json::json;
use sluicegate_tests::envoy::{Envoy, at};
use sluicegate_tests::policy::plugin;
use sluicegate_tests::recorder::Recorder;
use sluicegate_tests_full::identity::Identities;

#[tokio::test]
async fn fields_of_a_clients_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let identities = Identities::new(
        folder.path(),
        "spiffe://example.org/ns/default/sa/worker",
        "worker.example.org",
        "worker",
    );
    let socket = Identities::transport_socket(folder.path());
    let keys = [
        json!([{ "mtls": "spiffe" }]),
        json!([{ "mtls": "uri_san" }]),
        json!([{ "mtls": "dns_san" }]),
        json!([{ "mtls": "subject" }]),
        json!([{ "attribute": "connection.tls_version", "plain": true }]),
    ];
    let check = |key| json!({ "limit": "l", "key": key, "when_missing": { "use": "nobody" } });
    let checks = keys.map(check);
    let rules = json!([{ "name": "r", "checks": checks, "when_unavailable": "deny" }]);
    let recorder = Recorder::start().await;
    let envoy = Envoy::asking(recorder.port)
        .plugin(plugin(rules))
        .patch(|config| {
            at(config, "/static_resources/listeners/0/filter_chains/0")["transport_socket"] =
                socket;
        });
    let envoy = envoy.start(folder.path()).await;
    let request = b"GET /v1/a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answer = identities.exchange(envoy.port, true, request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(
        recorder.asked(),
        [
            "l @mtls/spiffe=spiffe://example.org/ns/default/sa/worker 1",
            "l @mtls/uri_san=spiffe://example.org/ns/default/sa/worker 1",
            "l @mtls/dns_san=worker.example.org 1",
            "l @mtls/subject=CN%3Dworker 1",
            "l @attribute/connection/tls_version=TLSv1.3 1",
        ]
    );
    identities.exchange(envoy.port, false, request).await;
    assert_eq!(recorder.asked()[0], "l @missing/@mtls/spiffe=nobody 1");
}
