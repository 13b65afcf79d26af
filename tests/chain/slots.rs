//! How many at once: every way in which a stream can end frees its slot, and a client that asks one request after the other is never
//! denied by its own.

use std::io::Write as _;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, Response, StatusCode, Uri};
use h2::client::{ResponseFuture, SendRequest};
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{MANAGER, PLUGIN, at};
use sluicegate_tests::listener::{from_file, replace_listener};
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::settled::model;
use super::support::{Chain, Policy, filters, pushed, sent, with_rules};

/// How long a slot lives by itself: longer than a test.
pub const FOREVER: &str = "10m";

async fn answer(uri: Uri) -> Response<Body> {
    let headers = match uri.path() {
        "/" => &[][..],
        // Headers that are trailers too.
        "/grpc" => &[("content-type", "application/grpc"), ("grpc-status", "14")],
        "/moved" => &[("location", "http://h/json?1")],
        _ => return model(uri).await,
    };
    let mut response = Response::new(Body::empty());
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(*name, value);
    }
    if uri.path() == "/moved" {
        *response.status_mut() = StatusCode::FOUND;
    }
    response
}

/// An upstream that closes its connections without an answer, answers `/raw/early` before it has the body, and echoes what comes
/// after the head of `/raw/echo` until there is a `!`.
async fn raw() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(one(stream));
        }
    });
    port
}

async fn one(mut stream: TcpStream) -> std::io::Result<()> {
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") && stream.read_buf(&mut read).await? > 0 {}
    let head = String::from_utf8_lossy(&read);
    if head.contains("/raw/early") {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await?;
    }
    if head.contains("/raw/echo") {
        let upgrade = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(upgrade).await?;
        let mut bytes = [0; 64];
        loop {
            let size = stream.read(&mut bytes).await?;
            if size == 0 || bytes[..size].contains(&b'!') {
                break;
            }
            stream.write_all(&bytes[..size]).await?;
        }
    }
    Ok(())
}

/// Routes to an upstream that breaks off and to one that is not there, one that takes too long, and a filter behind ours that answers.
fn routes(config: &mut Value, raw: u16) {
    let cluster = |name: &str, port: u16| {
        let mut cluster =
            json!({ "name": name, "type": "STATIC", "load_assignment": { "cluster_name": name } });
        let address = json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
        cluster["load_assignment"]["endpoints"] =
            json!([{ "lb_endpoints": [{ "endpoint": { "address": address } }] }]);
        cluster
    };
    let clusters = at(config, "/static_resources/clusters")
        .as_array_mut()
        .unwrap();
    clusters.extend([cluster("raw", raw), cluster("closed", free_port())]);
    let manager = at(config, MANAGER);
    manager["upgrade_configs"] =
        json!([{ "upgrade_type": "websocket" }, { "upgrade_type": "CONNECT" }]);
    let tunnel = json!({ "cluster": "raw", "upgrade_configs": [{ "upgrade_type": "CONNECT", "connect_config": {} }] });
    let all = &mut manager["route_config"]["virtual_hosts"][0]["routes"];
    all.as_array_mut().unwrap().splice(0..0, [
        json!({ "match": { "connect_matcher": {} }, "route": tunnel }),
        json!({ "match": { "prefix": "/raw" }, "route": { "cluster": "raw", "timeout": "0s" } }),
        json!({ "match": { "prefix": "/closed" }, "route": { "cluster": "closed" } }),
        json!({ "match": { "prefix": "/late" }, "route": { "cluster": "upstream", "timeout": "0.1s", "prefix_rewrite": "/hang" } }),
        json!({ "match": { "prefix": "/again" }, "route": { "cluster": "upstream", "prefix_rewrite": "/status/503",
            "retry_policy": { "retry_on": "5xx", "num_retries": 2 } } }),
        json!({ "match": { "prefix": "/moved" }, "route": { "cluster": "upstream", "internal_redirect_policy": {} } }),
        json!({ "match": { "prefix": "/idle" }, "route": { "cluster": "upstream", "idle_timeout": "0.1s", "prefix_rewrite": "/slow" } }),
    ]);
    let fault = json!({
        "name": "fault",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": { "header_abort": {}, "percentage": { "numerator": 100 } },
        },
    });
    filters(config).insert(1, fault);
}

fn rules(limit: &str) -> Value {
    json!([{
        "name": "streams", "when_unavailable": "deny",
        "checks": [{ "limit": limit, "key": [{ "header": "x-user", "plain": true }] }],
    }])
}

fn policy(url: &str, at_once: u64, expire: &str, more: &str) -> String {
    let limit =
        format!("algorithm: concurrency, windows: [{{ quota: {at_once}, per: {expire} }}]{more}");
    let policy = Policy::on(url)
        .timeout("8s")
        .limit("streams", &limit)
        .text();
    with_rules(&policy, &rules("streams"))
}

async fn chain(at_once: u64, expire: &str, more: &str) -> Chain {
    chain_of(1, at_once, expire, more).await
}

/// A chain with so many workers and slots.
pub async fn chain_of(workers: u32, at_once: u64, expire: &str, more: &str) -> Chain {
    let (up, raw) = (
        upstream::serve(Router::new().fallback(answer)).await,
        raw().await,
    );
    let policy = |url: &str| policy(url, at_once, expire, more);
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("4s");
    let chain = Chain::with(policy, |envoy| {
        let routes = move |config: &mut Value| routes(config, raw);
        let envoy = envoy.upstream(up).plugin(plugin).patch(routes);
        envoy.workers(workers)
    })
    .await;
    chain.envoy.has_rules().await;
    chain
}

/// How many slots are in use.
async fn used(chain: &Chain) -> u64 {
    let mut used = 0;
    let keys = chain.redis.keys().await.into_iter();
    for key in keys.filter(|key| key.contains("slot1")) {
        used += chain.redis.command::<u64>(&format!("ZCARD {key}")).await;
    }
    used
}

async fn uses(chain: &Chain, expected: u64, when: &str) {
    eventually(
        &format!("{expected} slots are in use: {when}"),
        async || used(chain).await == expected,
    )
    .await;
}

/// A connection on which the head of a request was sent.
async fn open(chain: &Chain, line: &str, more: &str) -> TcpStream {
    let head = format!("{line} HTTP/1.1\r\nhost: h\r\nx-user: u\r\n{more}\r\n");
    sent(chain.envoy.port, &head).await
}

/// Reads until there is this text.
async fn read_until(stream: &mut TcpStream, text: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let size = stream.read_buf(&mut read).await.unwrap();
        assert!(size > 0, "{text}: {}", String::from_utf8_lossy(&read));
    }
}

const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\n";

#[tokio::test]
async fn a_stream_that_ends_by_itself_frees_its_slot() {
    let chain = chain(1, FOREVER, "").await;
    for (line, more, status) in [
        ("GET /json?1", "", 200),
        ("GET /sse?1", "", 200),
        ("HEAD /json?1", "", 200),
        ("GET /status/404", "", 404),
        ("GET /status/429", "", 429),
        ("GET /status/503", "", 503),
        ("GET /cut", "", 200),
        ("GET /again", "", 503),
        ("GET /late", "", 504),
        ("GET /idle", "", 200),
        // Its filters end before those of the next request begin.
        ("GET /moved", "", 200),
        ("GET /closed", "", 503),
        ("GET /raw/reset", "", 503),
        ("POST /raw/early", "content-length: 1000000\r\n", 200),
        ("GET /json?1", "x-envoy-fault-abort-request: 418\r\n", 418),
        (
            "POST /grpc",
            "content-type: application/grpc\r\ncontent-length: 0\r\n",
            200,
        ),
        ("GET /raw/reset", UPGRADE, 503),
    ] {
        let before = chain.redis.calls("zrem").await;
        let mut stream = open(&chain, line, &format!("{more}connection: close\r\n")).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{line}: {answer}"
        );
        eventually(&format!("{line} had a slot"), async || {
            chain.redis.calls("zrem").await > before
        })
        .await;
        uses(&chain, 0, line).await;
    }
    // The server ends it.
    let mut socket = open(&chain, "GET /raw/echo", UPGRADE).await;
    read_until(&mut socket, "websocket").await;
    socket.write_all(b"still here").await.unwrap();
    read_until(&mut socket, "still here").await;
    assert_eq!(used(&chain).await, 1);
    socket.write_all(b"!").await.unwrap();
    uses(&chain, 0, "the server closes the WebSocket").await;
    chain.envoy.is_well().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_any_phase_leaves_its_slot_free() {
    let chain = chain(4, FOREVER, "").await;
    for (line, more, seen) in [
        ("GET /hang", "", ""),
        ("GET /slow", "", "data: "),
        ("POST /hang", "content-length: 10\r\n", ""),
        ("POST /raw/early", "content-length: 10\r\n", "ok"),
        ("GET /raw/echo", UPGRADE, "101"),
        ("CONNECT a:1", "", "200"),
    ] {
        let mut stream = open(&chain, line, more).await;
        read_until(&mut stream, seen).await;
        if line != "POST /raw/early" {
            uses(&chain, 1, line).await;
        }
        drop(stream);
        uses(&chain, 0, line).await;
    }
    // While it waits for its verdict, which takes a slot for nobody.
    let before = chain.redis.calls("zadd").await;
    chain.redis.pause();
    let waits = open(&chain, "GET /hang", "").await;
    eventually("it waits", async || chain.envoy.active().await == 1).await;
    drop(waits);
    eventually("it has gone", async || chain.envoy.active().await == 0).await;
    chain.redis.resume();
    eventually("the slot is taken", async || {
        chain.redis.calls("zadd").await > before
    })
    .await;
    uses(&chain, 0, "the late verdict").await;
    // The filter's deadline has passed: then the sidecar frees what nobody was told of.
    let before = chain.redis.calls("zadd").await;
    chain.redis.pause();
    let late = chain.envoy.get("/json?1", &[("x-user", "u")]).await;
    assert_eq!(late.status(), 503);
    chain.redis.resume();
    eventually("the slot is taken", async || {
        chain.redis.calls("zadd").await > before
    })
    .await;
    uses(&chain, 0, "a verdict that nobody was told of").await;
    chain.envoy.is_well().await;
}

/// Sends a request over HTTP/2.
fn start(send: &mut SendRequest<Bytes>, user: &str, path: &str) -> ResponseFuture {
    let request = Request::get(format!("http://h{path}")).header("x-user", user);
    let sent = send.send_request(request.body(()).unwrap(), true);
    sent.unwrap().0
}

#[tokio::test]
async fn streams_of_http_2_free_their_slots_each_by_itself() {
    let chain = chain(4, FOREVER, "").await;
    let stream = TcpStream::connect(("127.0.0.1", chain.envoy.port))
        .await
        .unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let whole = start(&mut send, "u", "/sse?1").await.unwrap();
    assert_eq!(whole.status(), 200);
    let mut body = whole.into_body();
    while body.data().await.is_some() {}
    uses(&chain, 0, "the whole response").await;
    let (first, second) = (
        start(&mut send, "u", "/hang"),
        start(&mut send, "u", "/slow"),
    );
    let mut body = second.await.unwrap().into_body();
    body.data().await.unwrap().unwrap();
    uses(&chain, 2, "two are open").await;
    drop(first);
    uses(&chain, 1, "a reset before the response").await;
    drop(body);
    uses(&chain, 0, "a reset in the middle").await;
    let rest = [
        start(&mut send, "u", "/hang"),
        start(&mut send, "u", "/hang"),
        start(&mut send, "u", "/hang"),
    ];
    uses(&chain, 3, "three are open").await;
    connection.abort();
    uses(&chain, 0, "the connection is gone").await;
    drop(rest);
    chain.envoy.is_well().await;
}

#[tokio::test]
async fn a_goaway_of_either_side_ends_no_stream_and_leaves_no_slot() {
    let chain = chain(4, FOREVER, "").await;
    // Of no error, about no stream.
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let connected = async || {
        let stream = std::net::TcpStream::connect(("127.0.0.1", chain.envoy.port)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let raw = stream.try_clone().unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        (raw, send, tokio::spawn(connection))
    };
    let whole = async |response: ResponseFuture| {
        let mut body = response.await.unwrap().into_body();
        while let Some(part) = body.data().await {
            part.unwrap();
        }
    };
    let (mut raw, mut send, connection) = connected().await;
    let (first, second) = (
        start(&mut send, "u", "/sse-later?1"),
        start(&mut send, "u", "/hang"),
    );
    uses(&chain, 2, "two are open").await;
    raw.write_all(&GOAWAY).unwrap();
    whole(first).await;
    uses(&chain, 1, "one has ended after the client's GOAWAY").await;
    connection.abort();
    uses(&chain, 0, "the client closes after GOAWAY").await;
    drop((second, raw));
    // Envoy drains: the first answer brings GOAWAY.
    let (_raw, mut send, connection) = connected().await;
    let fail = client().post(chain.envoy.admin("/healthcheck/fail"));
    assert_eq!(fail.send().await.unwrap().status(), 200);
    let response = start(&mut send, "u", "/sse-later?1");
    whole(response).await;
    uses(&chain, 0, "it has ended after Envoy's GOAWAY").await;
    let drained = "http.ingress.downstream_cx_drain_close";
    assert_eq!(chain.envoy.stat(drained).await, 1);
    // After GOAWAY, a client's connection ends with its streams.
    drop(send);
    connection.await.unwrap().unwrap();
    chain.envoy.is_well().await;
}

#[tokio::test]
async fn changes_of_rules_and_listener_and_a_restart_of_the_sidecar_lose_no_slot() {
    let (folder, mut listener) = (tempfile::tempdir().unwrap(), Value::Null);
    let up = upstream::serve(Router::new().fallback(answer)).await;
    let mut chain = Chain::with(
        |url| policy(url, 9, FOREVER, ""),
        |envoy| {
            let patch = |config: &mut Value| listener = from_file(config, folder.path());
            envoy.upstream(up).plugin(pushed()).patch(patch)
        },
    )
    .await;
    chain.envoy.listens().await;
    chain.envoy.has_rules().await;
    let begin = async |chain: &Chain| {
        let mut stream = open(chain, "GET /slow", "").await;
        read_until(&mut stream, "data: ").await;
        stream
    };
    let streams = [
        begin(&chain).await,
        begin(&chain).await,
        begin(&chain).await,
    ];
    uses(&chain, 3, "three run").await;
    let [by_old_rules, of_no_limit, on_old_listener] = streams;

    let renamed = policy(&chain.redis.url(), 9, FOREVER, "")
        .replace("\"name\":\"streams\"", "\"name\":\"other\"");
    let updated = chain.envoy.counted("rules_updated").await;
    std::fs::write(&chain.sidecar.policy, renamed).unwrap();
    eventually("the filter has other rules", async || {
        chain.envoy.counted("rules_updated").await >= updated + 2
    })
    .await;
    drop(by_old_rules);
    uses(&chain, 2, "its rules are replaced").await;

    let without =
        Policy::on(chain.redis.url())
            .timeout("8s")
            .window("opens", "sliding_log", 999, "1h");
    let without = with_rules(&without.text(), &rules("opens"));
    std::fs::write(&chain.sidecar.policy, without).unwrap();
    eventually("the limit is gone", async || {
        chain.envoy.counted("rules_updated").await >= updated + 4
    })
    .await;
    drop(of_no_limit);
    uses(&chain, 1, "the policy has no such limit any more").await;

    at(&mut listener, PLUGIN)["pepper"] = json!("another");
    replace_listener(&chain.envoy, folder.path(), &listener).await;
    // Envoy cuts what is left on a replaced listener.
    uses(&chain, 0, "its listener is gone").await;
    drop(on_old_listener);

    std::fs::write(
        &chain.sidecar.policy,
        policy(&chain.redis.url(), 9, FOREVER, ""),
    )
    .unwrap();
    eventually("the limit is back", async || {
        let _runs = begin(&chain).await;
        used(&chain).await == 1
    })
    .await;
    uses(&chain, 0, "no stream runs").await;
    let ended = begin(&chain).await;
    uses(&chain, 1, "one runs").await;
    chain.sidecar.kill();
    drop(ended);
    eventually("it has ended", async || chain.envoy.active().await == 0).await;
    chain.sidecar.restart().await;
    uses(&chain, 0, "the sidecar is back").await;
    chain.envoy.is_well().await;
}

#[tokio::test]
async fn a_slot_is_renewed_for_as_long_as_its_stream_lives_and_its_limit_allows() {
    let chain = chain(1, "3s", ", longest: 6s").await;
    let began = Instant::now();
    let mut stream = open(&chain, "GET /slow", "").await;
    read_until(&mut stream, "data: ").await;
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(used(&chain).await, 1, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What its client makes last longer has no slot any more, and that is told.
    eventually("it is renewed no more", async || {
        let other = chain.envoy.get("/json?1", &[("x-user", "u")]).await;
        other.status() == 200
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(6));
    chain.envoy.counts(&[("slots_outlived", 1)]).await;
    assert_eq!(chain.envoy.active().await, 1);
    drop(stream);
    uses(&chain, 0, "the end").await;
}

/// How many of so many requests were denied, each sent when the answer to the one before had ended.
pub async fn serial(port: u16, user: &str, count: usize, path: &str, close: bool) -> usize {
    let client = client();
    let mut denied = 0;
    for _ in 0..count {
        let mut request = client
            .get(format!("http://127.0.0.1:{port}{path}"))
            .header("x-user", user);
        if close {
            request = request.header("connection", "close");
        }
        let answer = request.send().await.unwrap();
        denied += usize::from(answer.status() == 429);
        answer.bytes().await.unwrap();
    }
    denied
}

/// Likewise, on one connection of HTTP/2.
pub async fn serial_http_2(port: u16, user: &str, count: usize, path: &str) -> usize {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut denied = 0;
    for _ in 0..count {
        send = send.ready().await.unwrap();
        let answer = start(&mut send, user, path).await.unwrap();
        denied += usize::from(answer.status() == 429);
        let mut body = answer.into_body();
        while body.data().await.is_some() {}
    }
    denied
}

/// Clients of so many requests each, one for each protocol, kind of response and use of connections.
pub async fn all_are_admitted(chain: &Chain, count: usize) {
    let port = chain.envoy.port;
    for path in PATHS {
        let denied = tokio::join!(
            serial(port, "alice", count, path, false),
            serial(port, "bob", count, path, true),
            serial_http_2(port, "carol", count, path),
        );
        assert_eq!(denied, (0, 0, 0), "{path}");
    }
    uses(chain, 0, "all have ended").await;
    chain.envoy.is_well().await;
}

/// With a length, chunked, and without a body.
pub const PATHS: [&str; 3] = ["/json?1", "/sse?1", "/grpc"];

#[tokio::test]
async fn a_serial_client_never_waits_for_its_own_slot() {
    all_are_admitted(&chain(1, FOREVER, "").await, 200).await;
}
