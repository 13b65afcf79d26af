//! Responses to clients, for every kind of request that Envoy serves.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::{number, plugin, policy};

/// An Envoy whose sidecar uses the embedded store.
pub struct Chain {
    pub envoy: Envoy,
    pub sidecar: Sidecar,
    _folder: TempDir,
}

impl Chain {
    /// With a limit `per-key` of this quota per hour.
    pub async fn start(
        quota: u64,
        rules: Value,
        upstream: u16,
        patch: impl FnOnce(&mut Value),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = policy("memory", "sliding_log", quota, "1h");
        let sidecar = Sidecar::start(&policy, folder.path()).await;
        let envoy = Envoy::asking(sidecar.port)
            .upstream(upstream)
            .plugin(plugin(rules))
            .patch(patch)
            .start(folder.path())
            .await;
        Self {
            envoy,
            sidecar,
            _folder: folder,
        }
    }
}

/// One rule for all requests, counted under one key.
pub fn everyone(more: &Value) -> Value {
    let mut rule = json!({ "name": "r", "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }] }],
        "when_unavailable": "deny" });
    for (field, value) in more.as_object().unwrap() {
        rule[field] = value.clone();
    }
    json!([rule])
}

fn ours(answer: &reqwest::Response) -> BTreeMap<String, String> {
    let named = |name: &str| name.contains("ratelimit") || name.contains("retry-after");
    answer
        .headers()
        .iter()
        .filter(|(name, _)| named(name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

#[tokio::test]
async fn responses_to_admitted_and_denied_clients_state_what_is_left() {
    let rules = everyone(&json!({ "reply": { "on_admitted": true } }));
    let chain = Chain::start(2, rules, upstream::start().await, |_| {}).await;
    for remaining in [1, 0] {
        let admitted = client().get(chain.envoy.url("/")).send().await.unwrap();
        assert_eq!(admitted.status(), 200);
        assert_eq!(number(&admitted, "x-ratelimit-remaining"), remaining);
        assert_eq!(number(&admitted, "x-ratelimit-limit"), 2);
        let fields = ours(&admitted);
        assert_eq!(fields["ratelimit-policy"], "\"per-key/3600s\";q=2;w=3600");
        assert!(
            fields["ratelimit"].starts_with(&format!("\"per-key/3600s\";r={remaining};t=")),
            "{fields:?}"
        );
        assert!(!fields.contains_key("retry-after"));
    }
    let denied = client().get(chain.envoy.url("/")).send().await.unwrap();
    assert_eq!(denied.status(), 429);
    let fields = ours(&denied);
    assert_eq!(fields.len(), 7, "{fields:?}");
    let t = fields["retry-after"].clone();
    assert_eq!(fields["ratelimit"], format!("\"per-key/3600s\";r=0;t={t}"));
    assert_eq!(
        number(&denied, "retry-after"),
        number(&denied, "retry-after-ms").div_ceil(1_000)
    );
    let names = [
        "decisions",
        "admitted",
        "denied",
        "rule=.=r;.;limit=.=per-key;.;rule_limit_denied",
    ];
    assert_eq!(chain.envoy.counts(names).await, [3, 2, 1, 1], "{names:?}");
}

#[tokio::test]
async fn an_upstreams_own_statement_stands_where_ours_is_not_made_and_gives_way_where_it_is() {
    use axum::Router;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().fallback(async || {
        (
            [("x-ratelimit-remaining", "77"), ("ratelimit", "\"x\";r=77")],
            "x",
        )
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    for (on_admitted, remaining, count) in [(false, 77, 2), (true, 0, 5)] {
        let rules = everyone(&json!({ "reply": { "on_admitted": on_admitted } }));
        let chain = Chain::start(1, rules, port, |_| {}).await;
        let admitted = client().get(chain.envoy.url("/")).send().await.unwrap();
        assert_eq!(number(&admitted, "x-ratelimit-remaining"), remaining);
        assert_eq!(
            admitted
                .headers()
                .iter()
                .filter(|(n, _)| n.as_str().contains("ratelimit"))
                .count(),
            count
        );
    }
}

#[tokio::test]
async fn a_rule_has_its_own_body_and_a_head_request_none() {
    let rules = everyone(
        &json!({ "reply": { "headers": "draft", "body": "<h1>Slow down</h1>", "content_type": "text/html" } }),
    );
    let chain = Chain::start(1, rules, upstream::start().await, |_| {}).await;
    assert_eq!(
        client()
            .get(chain.envoy.url("/"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
    let denied = client().get(chain.envoy.url("/")).send().await.unwrap();
    assert_eq!(denied.headers()["content-type"], "text/html");
    assert_eq!(ours(&denied).len(), 4, "{denied:?}");
    assert_eq!(denied.text().await.unwrap(), "<h1>Slow down</h1>");
    let head = client().head(chain.envoy.url("/")).send().await.unwrap();
    assert_eq!(head.status(), 429);
    assert_eq!(ours(&head).len(), 4);
    assert_eq!(head.text().await.unwrap(), "");
}

#[tokio::test]
async fn a_cost_above_the_quota_is_answered_with_422() {
    let rules = everyone(
        &json!({ "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }], "cost": 3 }] }),
    );
    let chain = Chain::start(2, rules, upstream::start().await, |_| {}).await;
    let refused = client().get(chain.envoy.url("/")).send().await.unwrap();
    assert_eq!(refused.status(), 422);
    assert!(ours(&refused).is_empty());
    let body: Value = serde_json::from_str(&refused.text().await.unwrap()).unwrap();
    assert_eq!(body["status"], 422);
    assert_eq!(chain.envoy.counted("refused_cost_over_limit").await, 1);
}

/// Status, headers and trailers of a request over HTTP/2.
async fn http2(
    port: u16,
    content_type: &str,
    body: Option<&'static [u8]>,
    trailers: bool,
) -> (u16, BTreeMap<String, String>) {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::post("http://host/a.B/C")
        .header("content-type", content_type)
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (answer, mut sending) = send
        .send_request(request, body.is_none() && !trailers)
        .unwrap();
    if let Some(body) = body {
        sending
            .send_data(axum::body::Bytes::from_static(body), !trailers)
            .unwrap();
    }
    if trailers {
        let mut map = axum::http::HeaderMap::new();
        map.insert("x-checksum", "1".parse().unwrap());
        sending.send_trailers(map).unwrap();
    }
    let answer = answer.await.unwrap();
    let status = answer.status().as_u16();
    let headers = answer.headers().iter();
    let headers = headers
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    (status, headers)
}

#[tokio::test]
async fn grpc_clients_get_resource_exhausted_in_trailers_only() {
    let rules = everyone(&json!({ "reply": { "body": "not for gRPC" } }));
    let chain = Chain::start(1, rules, upstream::start().await, |_| {}).await;
    let call = || {
        http2(
            chain.envoy.port,
            "application/grpc",
            Some(b"\0\0\0\0\0"),
            false,
        )
    };
    let (status, headers) = call().await;
    assert_eq!(
        (status, headers.get("grpc-status")),
        (200, None),
        "{headers:?}"
    );
    let (status, headers) = call().await;
    assert_eq!(
        (status, headers["grpc-status"].as_str()),
        (200, "8"),
        "{headers:?}"
    );
    assert_eq!(headers["content-type"], "application/grpc");
    assert!(headers["grpc-message"].contains("per-key"), "{headers:?}");
    // F20: to the millisecond.
    let pushback = &headers["grpc-retry-pushback-ms"];
    assert_eq!(pushback, &headers["retry-after-ms"], "{headers:?}");
}

#[tokio::test]
async fn a_grpc_client_without_a_verdict_gets_unavailable() {
    let mut chain = Chain::start(1, everyone(&json!({})), upstream::start().await, |_| {}).await;
    chain.sidecar.kill();
    let (status, headers) = http2(
        chain.envoy.port,
        "application/grpc+proto",
        Some(b"\0\0\0\0\0"),
        false,
    )
    .await;
    assert_eq!(
        (status, headers["grpc-status"].as_str()),
        (200, "14"),
        "{headers:?}"
    );
    assert!(!headers.contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn requests_with_trailers_and_without_a_body_wait_for_their_verdict_like_others() {
    let chain = Chain::start(2, everyone(&json!({})), upstream::start().await, |_| {}).await;
    let mut statuses = Vec::new();
    for (body, trailers) in [
        (None, true),
        (Some(&b"x"[..]), true),
        (None, true),
        (Some(b"x"), false),
        (None, false),
    ] {
        statuses.push(
            http2(chain.envoy.port, "text/plain", body, trailers)
                .await
                .0,
        );
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
}

/// An upstream that accepts any upgrade or tunnel, and then echoes.
async fn tunnel() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                while !heard.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let answer: &[u8] = if heard.starts_with(b"CONNECT") {
                    b"HTTP/1.1 200 OK\r\n\r\n"
                } else {
                    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
                };
                let _ = stream.write_all(answer).await;
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

/// Sends a head, then a word if it was admitted; returns the status, and whether the word was echoed.
async fn talk(port: u16, head: &str) -> (String, bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{head}");
    }
    let status = String::from_utf8_lossy(&answer[9..12]).into_owned();
    if !matches!(status.as_str(), "101" | "200") {
        return (status, false);
    }
    stream.write_all(b"word").await.unwrap();
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.unwrap();
    (status, &echo == b"word")
}

#[tokio::test]
async fn websockets_and_tunnels_are_admitted_and_denied_like_requests() {
    let patch = |config: &mut Value| {
        let manager = at(config, MANAGER);
        manager["upgrade_configs"] =
            json!([{ "upgrade_type": "websocket" }, { "upgrade_type": "CONNECT" }]);
        let routes = manager["route_config"]["virtual_hosts"][0]["routes"]
            .as_array_mut()
            .unwrap();
        routes.insert(
            0,
            json!({ "match": { "connect_matcher": {} }, "route": { "cluster": "upstream",
            "upgrade_configs": [{ "upgrade_type": "CONNECT" }] } }),
        );
    };
    for (head, status) in [
        (
            "GET /chat HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n",
            "101",
        ),
        ("CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n", "200"),
    ] {
        let rules = everyone(&json!({ "match": { "path_prefix": "/" } }));
        let chain = Chain::start(2, rules, tunnel().await, patch).await;
        for _ in 0..2 {
            assert_eq!(
                talk(chain.envoy.port, head).await,
                (status.to_owned(), true),
                "{head}"
            );
        }
        assert_eq!(
            talk(chain.envoy.port, head).await,
            ("429".to_owned(), false),
            "{head}"
        );
    }
}
