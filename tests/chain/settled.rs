//! Costs that are known after the response: every way in which a stream can end, with real parsers before ours.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, Uri};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use sluicegate_tests::client::{client, get};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{ALGORITHMS, Chain, Policy, add_sidecars, filters, left, pushed, sent};

const QUOTA: u64 = 10_000;

/// A stream, with a character of two bytes.
const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"w\u{f6}rd\"}}]}\n\ndata: {\"usage\":{\"total_tokens\":7}}\n\ndata: [DONE]\n\n";

/// Answers by the request's path: `/json?N`, `/sse?N` with N tokens, `/none` with none, `/status/503`, `/header?N`, `/cut` breaks
/// off, `/hang` never answers, `/slow` sends the first byte and no more.
pub async fn model(uri: Uri) -> Response<Body> {
    let tokens = uri.query().unwrap_or("0");
    let mut headers = HeaderMap::new();
    let mut status = 200;
    let sse = |events: Vec<String>| {
        let events = events
            .into_iter()
            .map(|event| Ok::<_, Infallible>(Bytes::from(format!("data: {event}\n\n"))));
        Body::from_stream(stream::iter(events))
    };
    let word =
        || json!({ "choices": [{ "delta": { "content": "word" } }], "usage": null }).to_string();
    let mut kind = "application/json";
    let body = match uri.path() {
        "/json" => Body::from(format!(
            r#"{{"choices":[],"usage":{{"total_tokens":{tokens}}}}}"#
        )),
        "/none" => Body::from(r#"{"choices":[]}"#),
        "/sse" => {
            kind = "text/event-stream";
            let usage = format!(r#"{{"choices":[],"usage":{{"total_tokens":{tokens}}}}}"#);
            sse(vec![word(), word(), usage, "[DONE]".to_owned()])
        }
        "/openai" | "/openai-stream" => {
            let usage = json!({ "prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30 });
            let chunk = |object: &str, choices: Value, usage: &Value| {
                json!({ "id": "chatcmpl-1", "object": object, "created": 1, "model": "m", "choices": choices, "usage": usage }).to_string()
            };
            if uri.path() == "/openai" {
                let message = json!([{ "index": 0, "message": { "role": "assistant", "content": "w" }, "finish_reason": "stop" }]);
                Body::from(chunk("chat.completion", message, &usage))
            } else {
                kind = "text/event-stream";
                let delta = json!([{ "index": 0, "delta": { "content": "w" } }]);
                let object = "chat.completion.chunk";
                sse(vec![
                    chunk(object, delta, &Value::Null),
                    chunk(object, json!([]), &usage),
                    "[DONE]".to_owned(),
                ])
            }
        }
        "/header" => {
            headers.insert("x-graphql-cost", HeaderValue::from_str(tokens).unwrap());
            Body::from("{}")
        }
        "/cut" => {
            kind = "text/event-stream";
            let first = stream::iter([Ok(Bytes::from(format!("data: {}\n\n", word())))]);
            Body::from_stream(first.chain(stream::once(async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Err(std::io::Error::other("cut"))
            })))
        }
        "/slow" => {
            kind = "text/event-stream";
            let first = stream::iter([Ok::<_, Infallible>(Bytes::from(format!(
                "data: {}\n\n",
                word()
            )))]);
            Body::from_stream(first.chain(stream::pending()))
        }
        "/split" | "/split-cut" => {
            kind = "text/event-stream";
            let at: usize = tokens.parse().unwrap();
            let (first, rest) = STREAM.as_bytes().split_at(at);
            let rest = if uri.path() == "/split" {
                Ok(Bytes::from(rest))
            } else {
                Err(std::io::Error::other("cut"))
            };
            let first = stream::iter([Ok(Bytes::from(first))]);
            Body::from_stream(first.chain(stream::once(async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                rest
            })))
        }
        "/sse-later" | "/sse-much-later" => {
            kind = "text/event-stream";
            let seconds = if uri.path() == "/sse-later" { 1 } else { 14 };
            let usage = format!("data: {{\"usage\":{{\"total_tokens\":{tokens}}}}}\n\n");
            let first = stream::iter([Ok::<_, Infallible>(Bytes::from("data: {}\n\n"))]);
            Body::from_stream(first.chain(stream::once(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(Bytes::from(usage))
            })))
        }
        "/hang" => {
            tokio::time::sleep(Duration::from_secs(3_600)).await;
            Body::empty()
        }
        path => {
            status = path.strip_prefix("/status/").unwrap().parse().unwrap();
            Body::from("{}")
        }
    };
    headers.insert("content-type", HeaderValue::from_static(kind));
    let mut response = Response::builder().status(status).body(body).unwrap();
    response.headers_mut().extend(headers);
    response
}

/// Envoy's parsers, which write usage and what requests declare.
pub fn parsers(config: &mut Value) {
    let rule = |path: &[&str], namespace: &str, key: &str| {
        let selectors: Vec<_> = path.iter().map(|key| json!({ "key": key })).collect();
        json!({ "selectors": selectors, "on_present": { "metadata_namespace": namespace, "key": key, "type": "NUMBER" } })
    };
    let usage = rule(&["usage", "total_tokens"], "usage", "total");
    let json_to_metadata = json!({
        "name": "json_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
            "request_rules": { "rules": [
                rule(&["max_tokens"], "request", "max_tokens"),
                rule(&["max_completion_tokens"], "request", "max_completion_tokens"),
                rule(&["usage"], "usage", "total"),
            ] },
            "response_rules": { "rules": [usage] },
        },
    });
    let sse_to_metadata = json!({
        "name": "sse_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.sse_to_metadata.v3.SseToMetadata",
            "response_rules": {
                "content_parser": {
                    "name": "envoy.content_parsers.json",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.content_parsers.json.v3.JsonContentParser",
                        "rules": [{ "rule": usage }],
                    },
                },
            },
        },
    });
    filters(config).splice(0..0, [json_to_metadata, sse_to_metadata]);
}

pub fn metadata(name: &str) -> Value {
    json!({ "metadata": { "namespace": "usage", "name": name } })
}

/// A policy whose only limit, of 10,000 units an hour, is settled so.
fn policy(url: &str, algorithm: &str, cost: &Value) -> String {
    let limit = format!("algorithm: {algorithm}, windows: [{{ quota: {QUOTA}, per: 1h }}]");
    let rules = json!([{
        "name": "tokens", "when_unavailable": "deny",
        "checks": [{ "limit": "tokens", "key": [{ "header": "x-tenant", "plain": true }], "cost": cost }],
    }]);
    let policy = Policy::on(url).limit("tokens", &limit).text();
    sluicegate_tests::policy::with_rules(&policy, &rules)
}

async fn chain(algorithm: &str, cost: Value) -> Chain {
    let upstream = upstream::serve(Router::new().fallback(model)).await;
    let policy = |url: &str| policy(url, algorithm, &cost);
    Chain::with(policy, |envoy| {
        envoy.upstream(upstream).plugin(pushed()).patch(parsers)
    })
    .await
}

/// What a tenant has used.
async fn used(chain: &Chain, tenant: &str) -> u64 {
    QUOTA - left(&chain.sidecar, "tokens", &format!("x-tenant={tenant}")).await
}

/// Waits until a tenant has used so much.
async fn has_used(chain: &Chain, tenant: &str, expected: u64) {
    eventually(&format!("{tenant} has used {expected}"), async || {
        used(chain, tenant).await == expected
    })
    .await;
}

async fn post(chain: &Chain, path: &str, tenant: &str, body: &str) -> u16 {
    let request = client()
        .post(chain.envoy.url(path))
        .header("x-tenant", tenant);
    let request = request
        .header("content-type", "application/json")
        .body(body.to_owned());
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let _ = answer.bytes().await;
    status
}

#[tokio::test]
async fn usage_of_whole_responses_is_settled_in_every_algorithm() {
    for algorithm in ALGORITHMS {
        let cost = json!({ "reserve": 1000, "settle": { "from": metadata("total"), "max": 5000 } });
        let chain = chain(algorithm, cost).await;
        for (tenant, path, expected) in [
            ("less", "/json?300", 300),
            ("more", "/json?1500", 1500),
            ("stream", "/sse?120", 120),
            ("exact", "/sse?1000", 1000),
            ("nothing", "/json?0", 0),
            ("none", "/none", 1000),
            ("negative", "/json?-5", 0),
            ("fraction", "/json?2.5", 3),
            ("large", "/json?6000", 5000),
        ] {
            assert_eq!(post(&chain, path, tenant, "{}").await, 200, "{tenant}");
            has_used(&chain, tenant, expected).await;
        }
    }
}

#[tokio::test]
async fn a_request_reserves_the_largest_that_it_declares_and_never_more_than_a_part() {
    let declared = |name: &str| json!({ "metadata": { "namespace": "request", "name": name } });
    let largest = [declared("max_tokens"), declared("max_completion_tokens")];
    let reserve = json!({ "largest": largest, "default": 500 });
    let cost =
        json!({ "reserve": reserve, "most": "50%", "settle": { "from": metadata("total") } });
    let chain = chain("sliding_log", cost).await;
    for (tenant, declares, expected) in [
        (
            "both",
            r#"{"max_completion_tokens":1,"max_tokens":4096}"#,
            4_096,
        ),
        ("none", "{}", 500),
        ("round", r#"{"max_tokens":1000}"#, 1_000),
        ("coarse", r#"{"max_tokens":1001}"#, 1_008),
        ("too-much", r#"{"max_tokens":9000}"#, 5_000),
        ("huge", r#"{"max_tokens":1e300}"#, 5_000),
        ("negative", r#"{"max_tokens":-1}"#, 5_000),
        ("word", r#"{"max_tokens":"all"}"#, 500),
    ] {
        assert_eq!(
            post(&chain, "/none", tenant, declares).await,
            200,
            "{tenant}"
        );
        assert_eq!(used(&chain, tenant).await, expected, "{tenant}");
    }
    // A usage that the client itself has written tells nothing, unless the response says another one.
    assert_eq!(post(&chain, "/none", "forged", r#"{"usage":1}"#).await, 200);
    assert_eq!(
        post(&chain, "/json?7", "honest", r#"{"usage":1}"#).await,
        200
    );
    has_used(&chain, "honest", 7).await;
    assert_eq!(used(&chain, "forged").await, 500);
}

#[tokio::test]
async fn parallel_requests_that_reserve_never_pass_together_what_is_left() {
    let cost = json!({ "reserve": 1000, "settle": { "from": metadata("total") } });
    let chain = chain("sliding_window", cost).await;
    let send = |count: usize, path: &'static str| {
        let chain = &chain;
        let each = (0..count).map(move |_| post(chain, path, "t", "{}"));
        futures_util::future::join_all(each)
    };
    // While ten streams are open, no eleventh is admitted.
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(opened(&chain, "/slow", "t").await);
    }
    assert!(
        send(90, "/json?400")
            .await
            .iter()
            .all(|status| *status == 429)
    );
    drop(open);
    // They were cut after the first byte: what they reserved stays.
    assert_eq!(used(&chain, "t").await, QUOTA);
    eventually("all are settled", async || chain.envoy.active().await == 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(used(&chain, "t").await, QUOTA);

    let settled = |status: &u16| *status == 200;
    let admitted =
        futures_util::future::join_all((0..100).map(|_| post(&chain, "/sse?400", "u", "{}"))).await;
    let admitted = admitted.iter().filter(|status| settled(status)).count() as u64;
    assert!(admitted >= 10, "{admitted}");
    has_used(&chain, "u", admitted * 400).await;
}

/// A connection on which a request was answered with its first byte.
async fn opened(chain: &Chain, path: &str, tenant: &str) -> tokio::net::TcpStream {
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-tenant: {tenant}\r\n\r\n");
    let mut stream = sent(chain.envoy.port, &request).await;
    let mut answer = Vec::new();
    while !answer.windows(6).any(|bytes| bytes == b"data: ") {
        assert!(
            stream.read_buf(&mut answer).await.unwrap() > 0,
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    stream
}

#[tokio::test]
async fn each_way_in_which_a_stream_ends_has_its_cost() {
    let settle = |more: Value| {
        let mut settle = json!({ "from": metadata("total") });
        settle
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({ "reserve": 100, "settle": settle })
    };
    let kept = chain("sliding_log", settle(json!({}))).await;
    let chosen = json!({ "unknown": 7, "failed": "return", "cut_before_first_byte": 3, "cut": 5 });
    let chosen = chain("sliding_log", settle(chosen)).await;
    for (chain, expected) in [(&kept, [100; 5]), (&chosen, [7, 0, 0, 5, 5])] {
        let [unknown, failed, refused, broken, _] = expected;
        for (tenant, path, status, expected) in [
            ("unknown", "/none", 200, unknown),
            ("failed", "/status/500", 500, failed),
            ("refused", "/status/429", 429, refused),
            ("not-found", "/status/404", 404, unknown),
        ] {
            assert_eq!(post(chain, path, tenant, "{}").await, status);
            has_used(chain, tenant, expected).await;
        }
        assert_eq!(post(chain, "/cut", "broken", "{}").await, 200);
        has_used(chain, "broken", broken).await;
        // The client hangs up: in the middle, and before the first byte.
        drop(opened(chain, "/slow", "cut").await);
        has_used(chain, "cut", expected[4]).await;
        let before = if expected[0] == 100 { 100 } else { 3 };
        let mut stream = sent(
            chain.envoy.port,
            "GET /hang HTTP/1.1\r\nhost: h\r\nx-tenant: early\r\n\r\n",
        )
        .await;
        has_used(chain, "early", 100).await;
        stream.shutdown().await.unwrap();
        drop(stream);
        has_used(chain, "early", before).await;
        chain.envoy.is_well().await;
    }
}

#[tokio::test]
async fn statuses_headers_sizes_and_times_tell_usage_too() {
    let failures = json!({ "reserve": 1, "settle": { "from": { "status": { "4xx": 1, "429": 0, "default": 0 } } } });
    let chain_of = async |cost: Value| chain("sliding_log", cost).await;
    let logins = chain_of(failures).await;
    for (path, expected) in [
        ("/none", 0),
        ("/status/401", 1),
        ("/status/403", 2),
        ("/status/503", 2),
    ] {
        post(&logins, path, "login", "{}").await;
        has_used(&logins, "login", expected).await;
    }

    let header = json!({ "header": "x-graphql-cost", "trusted": true, "weight": 2 });
    let graphql = chain_of(json!({ "reserve": 10, "settle": { "from": header } })).await;
    for (tenant, path, expected) in [
        ("cost", "/header?21", 42),
        ("no-number", "/header?many", 10),
        ("none", "/none", 10),
    ] {
        assert_eq!(post(&graphql, path, tenant, "{}").await, 200);
        has_used(&graphql, tenant, expected).await;
    }

    let sum = json!({ "sum": [{ "bytes": true }, 1000] });
    let bytes = chain_of(
        json!({ "reserve": { "bytes": true, "weight": 0.25 }, "settle": { "from": sum } }),
    )
    .await;
    assert_eq!(post(&bytes, "/none", "small", "{}").await, 200);
    has_used(&bytes, "small", 1_000 + r#"{"choices":[]}"#.len() as u64).await;
}

#[tokio::test]
async fn a_reserve_of_0_takes_nothing_and_asks_whether_anything_is_left() {
    let cost = json!({ "reserve": 0, "settle": { "from": metadata("total") } });
    let chain = chain("fixed_window", cost).await;
    assert_eq!(post(&chain, "/sse?9999", "t", "{}").await, 200);
    has_used(&chain, "t", 9_999).await;
    assert_eq!(post(&chain, "/sse?5000", "t", "{}").await, 200);
    has_used(&chain, "t", QUOTA).await;
    eventually("nothing is left", async || {
        post(&chain, "/sse?1", "t", "{}").await == 429
    })
    .await;
    // Who is in debt, and by how much: 14,999 of 10,000.
    let (_, top) = get(&chain.sidecar.admin("/v1/top")).await;
    let top: Value = serde_json::from_str(&top).unwrap();
    assert_eq!(top["limits"][0]["nearest"][0]["used_ratio"], 1.4999);
    assert_eq!(post(&chain, "/none", "other", "{}").await, 200);
    assert_eq!(used(&chain, "other").await, 0);
}

#[tokio::test]
async fn a_stream_that_is_split_anywhere_is_settled_and_one_that_is_cut_before_its_usage_is_not() {
    let cost = json!({ "reserve": 100, "settle": { "from": metadata("total") } });
    let chain = chain("sliding_window", cost).await;
    let bytes = STREAM.len();
    let usage_ends = STREAM.find("data: [DONE]").unwrap();
    let paths: Vec<_> = (1..bytes).map(|at| format!("/split?{at}")).collect();
    let each = paths.iter().map(|path| post(&chain, path, "split", "{}"));
    let answers: Vec<_> = stream::iter(each).buffer_unordered(8).collect().await;
    assert!(answers.iter().all(|status| *status == 200));
    has_used(&chain, "split", (bytes as u64 - 1) * 7).await;
    let mut expected = 0;
    for at in (1..bytes).step_by(9).chain([usage_ends - 1, usage_ends]) {
        assert_eq!(
            post(&chain, &format!("/split-cut?{at}"), "cut", "{}").await,
            200,
            "{at}"
        );
        expected += if at < usage_ends { 100 } else { 7 };
        has_used(&chain, "cut", expected).await;
    }
}

#[tokio::test]
async fn settles_wait_for_sidecar_and_store_and_holds_live_with_their_streams() {
    let cost = json!({ "reserve": 1000, "settle": { "from": metadata("total"), "within": "10s" } });
    let mut chain = chain("sliding_log", cost).await;
    let client = client();
    let open = async |chain: &Chain| {
        let request = client
            .get(chain.envoy.url("/sse-later?40"))
            .header("x-tenant", "t");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        answer
    };
    let [first, second] = [open(&chain).await, open(&chain).await];
    let long = client
        .get(chain.envoy.url("/sse-much-later?50"))
        .header("x-tenant", "long");
    let long = long.send().await.unwrap();
    has_used(&chain, "t", 2_000).await;
    // They end while nobody can be told.
    chain.sidecar.kill();
    first.bytes().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    chain.sidecar.restart().await;
    second.bytes().await.unwrap();
    has_used(&chain, "t", 80).await;
    // Longer than a hold lives without a sign.
    long.bytes().await.unwrap();
    has_used(&chain, "long", 50).await;
    assert_eq!(
        chain
            .envoy
            .counted("rule=.=tokens;.;rule_settle_lost")
            .await,
        0
    );
}

/// It has restarted with a file that lacks the limit, which the other one has.
#[tokio::test]
async fn a_sidecar_that_does_not_know_the_limit_loses_no_usage_that_another_one_can_settle() {
    let redis = Redis::start().await;
    let cost = json!({ "reserve": 1000, "settle": { "from": metadata("total") } });
    let policy = policy(&redis.url(), "sliding_log", &cost);
    let mut sidecars = [Sidecar::alone(&policy).await, Sidecar::alone(&policy).await];
    let upstream = upstream::serve(Router::new().fallback(model)).await;
    let planned = Envoy::asking(sidecars[0].port).upstream(upstream);
    let planned = planned.plugin(pushed()).patch(|config| {
        parsers(config);
        add_sidecars(config, &sidecars[1..]);
    });
    let (envoy, client) = (planned.alone().await, client());
    let mut streams = Vec::new();
    for tokens in [20, 30, 40, 50] {
        let request = client.get(envoy.url(&format!("/sse-much-later?{tokens}")));
        let answer = request.header("x-tenant", "t").send().await.unwrap();
        assert_eq!(answer.status(), 200);
        streams.push(answer);
    }
    let [first, second] = &mut sidecars;
    first.kill();
    let other = Policy::on(redis.url()).window("other", "sliding_log", 1, "1h");
    std::fs::write(&first.policy, other.text()).unwrap();
    first.restart().await;
    for stream in streams {
        stream.bytes().await.unwrap();
    }
    eventually("all is settled", async || {
        QUOTA - left(second, "tokens", "x-tenant=t").await == 140
    })
    .await;
    let lost = "rule=.=tokens;.;rule_settle_lost";
    assert_eq!(envoy.counted(lost).await, 0);
}

#[tokio::test]
async fn streams_of_http_2_that_the_client_resets_keep_their_reserve() {
    let cost = json!({ "reserve": 100, "settle": { "from": metadata("total"), "cut": 9, "cut_before_first_byte": 4 } });
    let chain = chain("sliding_log", cost).await;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", chain.envoy.port))
        .await
        .unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for (tenant, path, expected) in [
        ("whole", "/sse?60", 60),
        ("cut", "/slow", 9),
        ("early", "/hang", 4),
    ] {
        send = send.ready().await.unwrap();
        let request =
            axum::http::Request::get(format!("http://h{path}")).header("x-tenant", tenant);
        let (answer, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
        if tenant == "early" {
            has_used(&chain, tenant, 100).await;
            drop(answer);
        } else {
            let mut body = answer.await.unwrap().into_body();
            assert!(body.data().await.is_some());
            while tenant == "whole" && body.data().await.is_some() {}
        }
        has_used(&chain, tenant, expected).await;
    }
}

#[tokio::test]
async fn shadow_rules_settle_too() {
    let cost = json!({ "reserve": 1000, "settle": { "from": metadata("total") } });
    let upstream = upstream::serve(Router::new().fallback(model)).await;
    let rules = json!([{
        "name": "trial", "shadow": true,
        "checks": [{ "limit": "tokens", "key": [{ "header": "x-tenant", "plain": true }], "cost": cost }],
    }]);
    let limit = format!("algorithm: sliding_log, windows: [{{ quota: {QUOTA}, per: 1h }}]");
    let policy = |url: &str| {
        let policy = Policy::on(url).limit("tokens", &limit).text();
        sluicegate_tests::policy::with_rules(&policy, &rules)
    };
    let chain = Chain::with(policy, |envoy| {
        envoy.upstream(upstream).plugin(pushed()).patch(parsers)
    })
    .await;
    assert_eq!(post(&chain, "/sse?30", "t", "{}").await, 200);
    eventually("it is settled", async || {
        left(&chain.sidecar, "tokens", "@shadow=trial;x-tenant=t").await == QUOTA - 30
    })
    .await;
}

#[tokio::test]
async fn what_envoys_ai_protocol_manager_extracts_is_usage_without_a_parser_of_ones_own() {
    let usage =
        json!({ "metadata": { "namespace": "envoy.ai.token_usage", "name": "total_tokens" } });
    let limit = format!("algorithm: sliding_log, windows: [{{ quota: {QUOTA}, per: 1h }}]");
    let rules = json!([{
        "name": "tokens", "when_unavailable": "deny",
        "checks": [{ "limit": "tokens", "key": [{ "header": "x-tenant", "plain": true }],
            "cost": { "reserve": 100, "settle": { "from": usage } } }],
    }]);
    let manager = json!({
        "name": "envoy.filters.http.ai_protocol_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ai_protocol_manager.v3.AiProtocolManager",
            "response_handling": { "token_usage": { "include_unconfigured_routes": true } },
        },
    });
    let upstream = upstream::serve(Router::new().fallback(model)).await;
    let policy = |url: &str| {
        let policy = Policy::on(url).limit("tokens", &limit).text();
        sluicegate_tests::policy::with_rules(&policy, &rules)
    };
    let chain = Chain::with(policy, |envoy| {
        let before = |config: &mut Value| filters(config).insert(0, manager);
        envoy.upstream(upstream).plugin(pushed()).patch(before)
    })
    .await;
    for path in ["/openai", "/openai-stream"] {
        assert_eq!(post(&chain, path, path, "{}").await, 200);
        has_used(&chain, path, 30).await;
    }
    assert_eq!(post(&chain, "/none", "none", "{}").await, 200);
    assert_eq!(used(&chain, "none").await, 100);
}
