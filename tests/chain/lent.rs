//! What the filter does with units that a fake sidecar lends it, when the sidecar then stalls or has another policy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use serde_json::{Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::upstream::serve;
use sluicegate_tests::wire::Wire;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support;

/// Units that the first answer lends.
const LENT: usize = 8;
/// Longer than it takes to fill the queue, unless the machine is very busy.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Parts that last less than `TIMEOUT` are not taken from beside other checks. The most that a filter spends a part.
const PART_US: u64 = 10_000_000;
/// Four callouts of 256 requests each, 4,096 that wait, and some for which there is no room.
const FILLING: usize = 4 * 256 + 4_096 + 100;

/// An answer to a question: the policy's epoch, the outcome for each decision, and how many units are lent.
struct Answer(u64, &'static str, usize);

const LENDS: Answer = Answer(1, "admitted", LENT);

impl Answer {
    fn json(&self, decisions: &[Value]) -> Value {
        let Self(epoch, outcome, units) = self;
        let verdict = json!({ "outcome": outcome, "check": 0, "limit": "l", "quota": 100, "window_ms": 60_000,
            "remaining": 50, "reset_ms": 60_000, "retry_after_ms": 1_000 });
        let check = &decisions[0]["checks"][0];
        let part = json!({ "id": 1, "limit": check["limit"], "key": check["key"], "units": units,
            "lasts_us": PART_US, "quota": 100, "window_ms": 60_000, "remaining": 50, "reset_ms": 60_000 });
        let leases = if *units > 0 { vec![part] } else { Vec::new() };
        json!({ "epoch": epoch, "instance": 7, "verdicts": vec![verdict; decisions.len()], "leases": leases })
    }
}

/// Starts a sidecar with these answers to questions. It never answers further ones, nor a callout without a question.
async fn sidecar(answers: impl IntoIterator<Item = Answer>) -> u16 {
    let answers: Arc<Mutex<VecDeque<_>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
    let router = Router::new().fallback(async move |body: String| {
        let question: Value = serde_json::from_str(&body).unwrap();
        let decisions = question["decisions"].as_array().unwrap();
        let answer = if decisions.is_empty() {
            None
        } else {
            answers.lock().unwrap().pop_front()
        };
        match answer {
            Some(answer) => answer.json(decisions).to_string(),
            None => std::future::pending().await,
        }
    });
    serve(router).await
}

/// `/` takes from the limit `hot`, `/both` also from `exact`, and on `/tried` a shadow rule has a say.
fn plugin() -> Value {
    let by_key = |limit: &str| json!({ "limit": limit, "key": [{ "header": "x-api-key" }] });
    let mut plugin = support::plugin(json!([
        { "name": "both", "match": { "path": "/both" }, "when_unavailable": "deny",
          "checks": [by_key("hot"), by_key("exact")], "stop": true },
        { "name": "tried", "match": { "path": "/tried" }, "when_unavailable": "deny", "shadow": true,
          "checks": [by_key("exact")] },
        { "name": "hot", "checks": [by_key("hot")], "when_unavailable": "deny" },
    ]));
    plugin["sidecar"]["timeout"] = json!(format!("{}s", TIMEOUT.as_secs()));
    plugin
}

async fn envoy(answers: impl IntoIterator<Item = Answer>) -> Envoy {
    support::envoy(sidecar(answers).await, plugin()).await
}

fn request(path: &str, key: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: h\r\nx-api-key: {key}\r\n\r\n").into_bytes()
}

/// How often this request is answered with 200.
async fn admitted(wire: &mut Wire, path: &str, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        let answer = wire.once(&request(path, "k")).await.unwrap();
        match answer.status {
            200 => admitted += 1,
            status => assert_eq!(status, 503, "{}", answer.body),
        }
    }
    admitted
}

/// The units of a request that finds the queue full were put back at once, and again when its stream ended.
#[tokio::test(flavor = "multi_thread")]
async fn units_of_requests_that_find_the_queue_full_are_put_back_once() {
    for _ in 0..5 {
        if let Some(by_lease) = admitted_beside_a_full_queue().await {
            assert!((1..=LENT).contains(&by_lease), "{by_lease} of {LENT}");
            return;
        }
    }
    panic!("the queue was never full in time");
}

/// How many requests a lease of `LENT` units admits after 50 that found the queue full; `None` if it may have ended before.
async fn admitted_beside_a_full_queue() -> Option<usize> {
    let envoy = envoy([LENDS]).await;
    envoy.listens().await;
    let mut filling = Vec::new();
    for _ in 0..FILLING {
        filling.push(TcpStream::connect(("127.0.0.1", envoy.port)).await.unwrap());
    }
    let started = Instant::now();
    assert_eq!(envoy.status("/", "k").await, 200);
    // Of one key not so many wait.
    for (number, stream) in filling.iter_mut().enumerate() {
        let key = format!("other-{}", number % 10);
        stream.write_all(&request("/", &key)).await.unwrap();
    }
    eventually("the queue is full", async || {
        envoy.stat("http.ingress.downstream_rq_5xx").await > 0
    })
    .await;
    let mut wire = Wire::new(envoy.port);
    assert_eq!(admitted(&mut wire, "/both", 50).await, 0);
    let by_lease = admitted(&mut wire, "/", 60).await;
    assert_eq!(envoy.vm_deaths().await, 0, "{}", envoy.log());
    if started.elapsed() > TIMEOUT {
        return None;
    }
    eventually("they found the queue full", async || {
        envoy.counted("error_full").await >= 50
    })
    .await;
    Some(by_lease)
}

/// A denial does not depend on the units that were taken, so it counts although their part has ended.
#[tokio::test]
async fn a_denial_by_a_new_policy_is_not_lost_with_the_part_that_it_ends() {
    let envoy = envoy([LENDS, Answer(2, "denied", 0)]).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    let answer = envoy.get("/both", &[("x-api-key", "k")]).await;
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["retry-after"], "1");
}

#[tokio::test]
async fn an_admission_by_a_new_policy_is_unavailable_if_it_ends_the_part() {
    let envoy = envoy([LENDS, Answer(2, "admitted", 0)]).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    assert_eq!(envoy.status("/both", "k").await, 503);
    // Counted as the sidecar would.
    let counts = [("error_store", 1), ("error_no_answer", 0)];
    envoy.counts(&counts).await;
}

/// Whatever becomes of the shadow rule, and of the part meanwhile, the enforced rule has admitted the request.
#[tokio::test]
async fn a_shadow_rule_does_not_undo_an_admission_from_a_lease() {
    let envoy = envoy([LENDS, Answer(2, "denied", 0)]).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    assert_eq!(envoy.status("/tried", "k").await, 200);
    let shadow = "rule=.=tried;.;limit=.=exact;.;rule_limit_shadow_denied";
    let counts = [(shadow, 1), ("error_no_answer", 0)];
    envoy.counts(&counts).await;
}
