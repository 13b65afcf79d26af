//! Responses to clients, for every kind of request that Envoy serves.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::upstream::serve;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::{Chain, number, plugin, policy};

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
    let chain = Chain::hourly(2, rules).await;
    for remaining in [1, 0] {
        let admitted = chain.get("/", "").await;
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
    let denied = chain.get("/", "").await;
    assert_eq!(denied.status(), 429);
    let fields = ours(&denied);
    assert_eq!(fields.len(), 8, "{fields:?}");
    assert_eq!(fields["x-envoy-ratelimited"], "true");
    let t = fields["retry-after"].clone();
    assert_eq!(fields["ratelimit"], format!("\"per-key/3600s\";r=0;t={t}"));
    assert_eq!(
        number(&denied, "retry-after"),
        number(&denied, "retry-after-ms").div_ceil(1_000)
    );
    let counts = [
        ("decisions", 3),
        ("admitted", 2),
        ("denied", 1),
        ("rule=.=r;.;limit=.=per-key;.;rule_limit_denied", 1),
    ];
    chain.envoy.counts(&counts).await;
}

#[tokio::test]
async fn an_upstreams_own_statement_stands_where_ours_is_not_made_and_gives_way_where_it_is() {
    use axum::Router;
    let router = Router::new().fallback(async || {
        (
            [("x-ratelimit-remaining", "77"), ("ratelimit", "\"x\";r=77")],
            "x",
        )
    });
    let port = serve(router).await;
    let mut rules = everyone(&json!({ "match": { "path": "/silent" } }));
    let stated = json!({ "match": { "path": "/stated" }, "name": "stated", "reply": { "on_admitted": true } });
    rules
        .as_array_mut()
        .unwrap()
        .push(everyone(&stated)[0].clone());
    let hourly = |url: &str| policy(url, "sliding_log", 2, "1h");
    let chain = Chain::with(hourly, |envoy| envoy.plugin(plugin(rules)).upstream(port)).await;
    for (path, remaining, count) in [("/silent", 77, 2), ("/stated", 0, 5)] {
        let admitted = chain.get(path, "").await;
        assert_eq!(number(&admitted, "x-ratelimit-remaining"), remaining);
        assert_eq!(ours(&admitted).len(), count);
    }
}

/// Two limits of a model: requests and tokens a minute. The fields are of the one that decided.
#[tokio::test]
async fn clients_of_a_model_are_told_in_its_words_which_limit_decided() {
    for (family, of_requests, of_tokens) in [
        ("openai", "x-ratelimit-*-requests", "x-ratelimit-*-tokens"),
        (
            "anthropic",
            "anthropic-ratelimit-requests-*",
            "anthropic-ratelimit-tokens-*",
        ),
    ] {
        let limits = |url: &str| {
            format!(
                "store: {url}\nstore_timeout: 1s\nlimits:\n  requests: {{ algorithm: sliding_log, windows: [{{ quota: 2, per: 1h }}] }}\n  tokens: {{ algorithm: sliding_log, windows: [{{ quota: 1000, per: 1h }}] }}\n"
            )
        };
        let cost = json!({ "header": "x-tokens", "max": 1_000, "default": 100, "trusted": true });
        let key = json!([{ "constant": "c" }]);
        let rules = everyone(&json!({
            "checks": [{ "limit": "requests", "key": key }, { "limit": "tokens", "key": key, "cost": cost }],
            "reply": { "headers": family, "units": { "tokens": "tokens" }, "on_admitted": true },
        }));
        let chain = Chain::with(limits, |envoy| envoy.plugin(plugin(rules))).await;
        let asked = async |tokens: &str| {
            let url = chain.envoy.url("/v1/messages");
            let request = client().get(url).header("x-tokens", tokens);
            let answer = request.send().await.unwrap();
            let status = answer.status().as_u16();
            (status, ours(&answer), answer.text().await.unwrap())
        };
        let told = |fields: &BTreeMap<String, String>, names: &str| {
            let field = |which: &str| fields.get(&names.replace('*', which)).cloned();
            ["limit", "remaining", "reset"].map(field)
        };
        // The fewest units are left of requests; then this asks for more tokens than there are.
        let (status, fields, _) = asked("600").await;
        assert_eq!(status, 200);
        let [limit, remaining, reset] = told(&fields, of_requests);
        let numbers = [limit, remaining].map(Option::unwrap);
        assert_eq!(numbers, ["2", "1"], "{fields:?}");
        let reset = reset.unwrap();
        let is_one = match family {
            "openai" => reset == "1h0m0s" || reset.starts_with("59m"),
            _ => reset.len() == 20 && reset.starts_with("20") && reset.ends_with('Z'),
        };
        assert!(is_one, "{reset}");
        assert_eq!(told(&fields, of_tokens), [None, None, None], "{fields:?}");
        // Beside them the draft's.
        assert!(fields["ratelimit"].starts_with("\"requests/3600s\";r=1;t="));
        assert_eq!(fields["ratelimit-policy"], "\"requests/3600s\";q=2;w=3600");
        let (status, fields, body) = asked("500").await;
        assert_eq!(status, 429);
        let [limit, remaining, reset] = told(&fields, of_tokens);
        let numbers = [limit, remaining].map(Option::unwrap);
        assert_eq!(numbers, ["1000", "400"], "{fields:?}");
        assert!(reset.is_some() && fields.contains_key("retry-after"));
        assert_eq!(told(&fields, of_requests), [None, None, None], "{fields:?}");
        let body: Value = serde_json::from_str(&body).unwrap();
        let expected = if family == "openai" {
            "tokens"
        } else {
            "rate_limit_error"
        };
        assert_eq!(body["error"]["type"], expected, "{body}");
        assert!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .contains("400 are left")
        );
    }
}

#[tokio::test]
async fn a_rule_has_its_own_body_and_a_head_request_none() {
    let rules = everyone(
        &json!({ "reply": { "headers": "draft", "body": "<h1>Slow down</h1>", "content_type": "text/html" } }),
    );
    let chain = Chain::hourly(1, rules).await;
    assert_eq!(chain.status("/", "").await, 200);
    let denied = chain.get("/", "").await;
    assert_eq!(denied.headers()["content-type"], "text/html");
    assert_eq!(ours(&denied).len(), 5, "{denied:?}");
    assert_eq!(denied.text().await.unwrap(), "<h1>Slow down</h1>");
    let head = client().head(chain.envoy.url("/")).send().await.unwrap();
    assert_eq!(head.status(), 429);
    assert_eq!(ours(&head).len(), 5);
    assert_eq!(head.text().await.unwrap(), "");
}

#[tokio::test]
async fn a_cost_above_the_quota_is_answered_with_422() {
    let cost = json!({ "header": "x-cost", "max": 3, "trusted": true });
    let rules = everyone(
        &json!({ "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }], "cost": cost }] }),
    );
    let chain = Chain::hourly(2, rules).await;
    let refused = chain.envoy.get("/", &[("x-cost", "3")]).await;
    assert_eq!(refused.status(), 422);
    assert!(ours(&refused).is_empty());
    let body: Value = serde_json::from_str(&refused.text().await.unwrap()).unwrap();
    assert_eq!(body["status"], 422);
    chain.envoy.counts(&[("refused_cost_over_limit", 1)]).await;
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

/// A call of gRPC, and what its client reads.
async fn grpc(chain: &Chain) -> BTreeMap<String, String> {
    let body = Some(&b"\0\0\0\0\0"[..]);
    let (status, headers) = http2(chain.envoy.port, "application/grpc+proto", body, false).await;
    assert_eq!(status, 200, "{headers:?}");
    headers
}

#[tokio::test]
async fn grpc_clients_get_resource_exhausted_in_trailers_only_and_unavailable_without_a_verdict() {
    let rules = everyone(&json!({ "reply": { "body": "not for gRPC" } }));
    let mut chain = Chain::hourly(1, rules).await;
    let admitted = grpc(&chain).await;
    assert_eq!(admitted.get("grpc-status"), None, "{admitted:?}");
    let denied = grpc(&chain).await;
    assert_eq!(denied["grpc-status"], "8", "{denied:?}");
    assert!(denied["content-type"].starts_with("application/grpc"));
    assert!(denied["grpc-message"].contains("per-key"), "{denied:?}");
    // F20: to the millisecond.
    let pushback = &denied["grpc-retry-pushback-ms"];
    assert_eq!(pushback, &denied["retry-after-ms"], "{denied:?}");
    chain.sidecar.kill();
    // The filter's cached denial ends within `denial_ttl`.
    eventually("there is no verdict", async || {
        grpc(&chain).await["grpc-status"] != "8"
    })
    .await;
    let unavailable = grpc(&chain).await;
    assert_eq!(unavailable["grpc-status"], "14", "{unavailable:?}");
    assert!(!unavailable.contains_key("grpc-retry-pushback-ms"));
}

#[tokio::test]
async fn requests_with_trailers_and_without_a_body_wait_for_their_verdict_like_others() {
    let chain = Chain::hourly(2, everyone(&json!({}))).await;
    for (body, trailers, status) in [
        (None, true, 200),
        (Some(&b"x"[..]), true, 200),
        (None, true, 429),
        (Some(b"x"), false, 429),
        (None, false, 429),
    ] {
        let answer = http2(chain.envoy.port, "text/plain", body, trailers).await;
        assert_eq!(answer.0, status, "{body:?}, {trailers}");
    }
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
    // Two units for each.
    let checks = json!([{ "limit": "per-key", "key": [{ "method": true }] }]);
    let rules = everyone(&json!({ "match": { "path_prefix": "/" }, "checks": checks }));
    let hourly = |url: &str| policy(url, "sliding_log", 2, "1h");
    let upstream = tunnel().await;
    let chain = Chain::with(hourly, |envoy| {
        let envoy = envoy.plugin(plugin(rules)).upstream(upstream);
        envoy.patch(patch)
    })
    .await;
    for (head, status) in [
        (
            "GET /chat HTTP/1.1\r\nhost: h\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n",
            "101",
        ),
        ("CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n", "200"),
    ] {
        for expected in [(status, true), (status, true), ("429", false)] {
            let answer = talk(chain.envoy.port, head).await;
            assert_eq!((answer.0.as_str(), answer.1), expected, "{head}");
        }
    }
}
