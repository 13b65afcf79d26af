//! Every recipe of docs/recipes.md, as it stands there, with the filters of a real Envoy and the page's own upstream.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::process::{eventually, repository};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{Chain, filters};
use sluicegate_tests::documents::{blocks, text};
use sluicegate_tests::envoy::{MANAGER, at};

/// The page's upstream, which ends with this.
struct Upstream(std::process::Child, u16);

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn upstream() -> Upstream {
    let program = repository("docs/recipes/upstream.py");
    let mut command = Command::new("python3");
    let mut child = command
        .arg(program)
        .arg("0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let printed = child.stdout.take().unwrap();
    BufReader::new(printed).read_line(&mut line).unwrap();
    Upstream(child, line.trim().parse().unwrap())
}

/// A chain of the section with this title.
async fn chain(title: &str, upstream: &Upstream) -> Chain {
    let page = text("docs/recipes.md");
    let sections: Vec<_> = page.split("\n## ").collect();
    let section = sections
        .iter()
        .find(|section| section.starts_with(title))
        .unwrap();
    let blocks = blocks(section, "yaml");
    let before: Vec<Value> = blocks.get(1).map_or_else(Vec::new, |block| {
        let mut block: Value = serde_saphyr::from_str(block).unwrap();
        serde_json::from_value(block["http_filters"].take()).unwrap()
    });
    let patch = move |config: &mut Value| {
        at(config, MANAGER)["upgrade_configs"] = json!([{ "upgrade_type": "websocket" }]);
        // A stall of this machine is no outage, in which requests would pass.
        let ours = &mut filters(config)[0]["typed_config"]["config"]["configuration"]["value"];
        ours["sidecar"]["timeout"] = json!("2s");
        filters(config).splice(0..0, before);
    };
    let policy = |url: &str| format!("store: {url}\nstore_timeout: 1s\n{}", blocks[0]);
    Chain::with(policy, |envoy| {
        let planned = envoy.upstream(upstream.1);
        planned.plugin(None).patch(patch)
    })
    .await
}

async fn send(
    chain: &Chain,
    path: &str,
    body: Value,
    fields: &[(&str, &str)],
) -> reqwest::Response {
    let mut request = client().post(chain.envoy.url(path)).json(&body);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap()
}

/// Sends a request, which is admitted, and reads its whole answer.
async fn passes(chain: &Chain, path: &str, body: Value, fields: &[(&str, &str)]) {
    let answer = send(chain, path, body, &[&[("x-tenant", "t")], fields].concat()).await;
    let status = answer.status();
    let body = answer.text().await.unwrap();
    assert_eq!(status, 200, "{path} {fields:?}: {body}");
}

/// Waits until the sidecar has counted so many units of a limit.
async fn units(chain: &Chain, limit: &str, outcome: &str, expected: f64) {
    let name = format!("sluicegate_settled_units_total{{limit=\"{limit}\",outcome=\"{outcome}\"}}");
    eventually(&format!("{expected} units {outcome}"), async || {
        chain.sidecar.metric(&name).await == expected
    })
    .await;
}

#[tokio::test]
async fn tokens_of_an_openai_compatible_upstream() {
    let upstream = upstream();
    let chain = chain("Tokens of an OpenAI", &upstream).await;
    let body = json!({ "model": "m", "max_completion_tokens": 500, "max_tokens": 1 });
    // Its 56 bytes reserve 14, and 500: 514 becomes 520.
    assert_eq!(body.to_string().len(), 56);
    passes(&chain, "/v1/chat/completions", body, &[]).await;
    units(&chain, "tokens", "returned", 520.0 - 120.0).await;
    let body = json!({ "stream": true, "max_tokens": 400 });
    passes(
        &chain,
        "/v1/chat/completions",
        body,
        &[("x-tokens", "1000")],
    )
    .await;
    units(&chain, "tokens", "charged", 1_000.0 - 408.0).await;
}

#[tokio::test]
async fn tokens_of_anthropics_api() {
    let upstream = upstream();
    let chain = chain("Tokens of Anthropic", &upstream).await;
    for (number, stream) in [(1.0, false), (2.0, true)] {
        let body = json!({ "stream": stream, "max_tokens": 1 });
        passes(&chain, "/v1/messages", body, &[("x-tokens", "100")]).await;
        // About 30 bytes reserve 8, and 5 for the output; 20 + 5 * 100 were used.
        units(&chain, "tokens", "charged", number * (520.0 - 13.0)).await;
    }
}

#[tokio::test]
async fn tool_calls_of_mcp() {
    let upstream = upstream();
    let chain = chain("Tool calls", &upstream).await;
    let call = |method: &str, tool: &str| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "name": tool } });
    let fields = [
        ("x-agent", "a"),
        ("accept", "application/json, text/event-stream"),
    ];
    for _ in 0..30 {
        passes(&chain, "/mcp", call("tools/call", "search"), &fields).await;
    }
    let denied = send(&chain, "/mcp", call("tools/call", "search"), &fields).await;
    assert_eq!(denied.status(), 429);
    let retry_after: u64 = denied.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let error: Value = denied.json().await.unwrap();
    assert_eq!(error["error"]["data"]["retry_after_s"], retry_after);
    passes(&chain, "/mcp", call("tools/call", "fetch"), &fields).await;
    passes(&chain, "/mcp", call("tools/list", "search"), &fields).await;
}

#[tokio::test]
async fn failed_logins() {
    let upstream = upstream();
    let chain = chain("Failed logins", &upstream).await;
    let login = async |account: &str, status: &str| {
        let body = json!({ "account": account });
        send(&chain, "/login", body, &[("x-status", status)])
            .await
            .status()
            .as_u16()
    };
    for number in 1..=10 {
        assert_eq!(login("honest", "200").await, 200);
        // What has not failed comes back when the stream has ended.
        for limit in ["logins-by-account", "logins-by-address"] {
            units(&chain, limit, "returned", f64::from(number)).await;
        }
    }
    let mut failures = 0;
    while login("victim", "401").await == 401 {
        failures += 1;
    }
    assert_eq!(failures, 5);
    // Nor do other types and forms of the body get past.
    for (media, body) in [
        ("application/json; charset=utf-8", r#"{"account":"victim"}"#),
        ("text/plain", r#"{"account":"victim"}"#),
    ] {
        let request = client().post(chain.envoy.url("/login")).body(body);
        let request = request
            .header("content-type", media)
            .header("x-status", "401");
        assert_eq!(request.send().await.unwrap().status(), 429, "{media}");
    }
    eventually("what had not failed came back", async || {
        login("honest", "200").await == 200
    })
    .await;
}

#[tokio::test]
async fn queries_bytes_and_milliseconds() {
    let upstream = upstream();
    let graphql = chain("GraphQL", &upstream).await;
    passes(&graphql, "/graphql", json!({}), &[("x-tokens", "42")]).await;
    units(&graphql, "graphql", "charged", 32.0).await;

    let egress = chain("Bytes that leave", &upstream).await;
    let fields = [("x-tenant", "t"), ("x-tokens", "25000")];
    assert_eq!(
        egress
            .envoy
            .get("/files/a", &fields)
            .await
            .bytes()
            .await
            .unwrap()
            .len(),
        25_000
    );
    units(&egress, "egress-kb", "charged", 25.0).await;

    let render = chain("Milliseconds", &upstream).await;
    passes(&render, "/render", json!({}), &[("x-wait-ms", "300")]).await;
    let name = r#"sluicegate_settled_units_total{limit="render-ms",outcome="charged"}"#;
    eventually("it is settled", async || {
        render.sidecar.metric(name).await >= 280.0
    })
    .await;
}

/// Sends these requests, whose answers have no end; their statuses. Each runs until its answer is dropped.
async fn open(chain: &Chain, path: &str, user: &str, count: usize) -> Vec<reqwest::Response> {
    let mut opened = Vec::new();
    for _ in 0..count {
        let request = client().get(chain.envoy.url(path)).header("x-user", user);
        opened.push(request.send().await.unwrap());
    }
    opened
}

fn statuses(answers: &[reqwest::Response]) -> Vec<u16> {
    answers
        .iter()
        .map(|answer| answer.status().as_u16())
        .collect()
}

/// Opens a WebSocket: the connection, if it is one.
async fn socket(chain: &Chain, user: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", chain.envoy.port))
        .await
        .unwrap();
    let head = format!(
        "GET /socket HTTP/1.1\r\nhost: h\r\nx-user: {user}\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
    }
    let status = String::from_utf8_lossy(&answer[9..12]).into_owned();
    if status == "429" {
        return None;
    }
    assert_eq!(status, "101");
    stream.write_all(b"word").await.unwrap();
    let mut echo = [0; 4];
    stream.read_exact(&mut echo).await.unwrap();
    Some(stream)
}

#[tokio::test]
async fn websockets_of_a_user() {
    let upstream = upstream();
    let chain = chain("WebSockets", &upstream).await;
    let mut sockets = Vec::new();
    for _ in 0..10 {
        sockets.push(socket(&chain, "one").await.unwrap());
    }
    assert!(socket(&chain, "one").await.is_none());
    assert!(socket(&chain, "other").await.is_some());
    drop(sockets.pop());
    eventually("a closed socket is free", async || {
        socket(&chain, "one").await.is_some()
    })
    .await;
}

#[tokio::test]
async fn server_sent_events() {
    let upstream = upstream();
    let chain = chain("Server-sent", &upstream).await;
    let mut streams = open(&chain, "/events/a", "one", 5).await;
    assert_eq!(statuses(&streams), [200, 200, 200, 200, 429]);
    let denied = streams.pop().unwrap();
    assert!(denied.headers().contains_key("retry-after"));
    let told = denied.text().await.unwrap();
    assert!(
        told.contains("event-streams") && told.contains("at once"),
        "{told}"
    );
    drop(streams.pop());
    eventually("a stream that has ended is free", async || {
        statuses(&open(&chain, "/events/a", "one", 1).await) == [200]
    })
    .await;
}

#[tokio::test]
async fn exports_four_at_once_and_a_hundred_a_day() {
    let upstream = upstream();
    let chain = chain("Exports", &upstream).await;
    let export = async |wait_ms: &str| {
        let fields = [("x-tenant", "t"), ("x-wait-ms", wait_ms)];
        send(&chain, "/exports", json!({}), &fields)
            .await
            .status()
            .as_u16()
    };
    let all = futures_util::future::join_all((0..7).map(|_| export("2000"))).await;
    let admitted = all.iter().filter(|status| **status == 200).count() as u64;
    assert_eq!(
        (
            admitted,
            all.iter().filter(|status| **status == 429).count()
        ),
        (4, 3),
        "{all:?}"
    );
    // Those that found no slot cost none of the hundred.
    for _ in admitted..100 {
        eventually("an export", async || export("0").await == 200).await;
    }
    assert_eq!(export("0").await, 429);
}

#[tokio::test]
async fn connections_of_an_address() {
    let upstream = upstream();
    let chain = chain("Connections of an address", &upstream).await;
    let streams = open(&chain, "/events/a", "any", 21).await;
    assert_eq!(statuses(&streams), [vec![200; 20], vec![429]].concat());
}
