//! The spans that a sidecar sends, read by an OTLP receiver of the test. `tests/full/collector` has a real collector.

use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::{Value, json};
use sluicegate_tests::ask::logs;
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use sluicegate_tests_full::collector::{Collector, attribute};

use sluicegate_tests::policy::{per_key, plugin, policy};

/// A key that no span may contain.
const KEY: &str = "a-key-that-is-a-secret";

/// A `traceparent` with the trace id made from this number, sampled or not; and its trace and parent ids.
fn traceparent(trace: u8, sampled: bool) -> (String, Vec<u8>, Vec<u8>) {
    let (trace, parent) = (vec![trace; 16], vec![0xb7; 8]);
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let text = format!("00-{}-{}-0{}", hex(&trace), hex(&parent), u8::from(sampled));
    (text, trace, parent)
}

/// Asks for decisions, with this header.
async fn ask(sidecar: &Sidecar, traceparent: Option<&str>, decisions: Value) -> Value {
    let mut request = client().post(sidecar.url("/v1/decide"));
    if let Some(traceparent) = traceparent {
        request = request.header("traceparent", traceparent);
    }
    let body = json!({ "decisions": decisions }).to_string();
    let answer = request.body(body).send().await.unwrap().text().await;
    serde_json::from_str(&answer.unwrap()).unwrap()
}

/// A span's trace and its parent in it.
fn is_in(span: &Span, trace: &[u8], parent: &[u8]) {
    assert_eq!(
        (&span.trace_id[..], &span.parent_span_id[..]),
        (trace, parent)
    );
}

fn decision() -> Value {
    json!({ "checks": [{ "limit": "per-key", "key": KEY }] })
}

/// A sidecar that exports spans to an endpoint, soon.
pub async fn traced(policy: &str, endpoint: String) -> Sidecar {
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
    ];
    let planned = Sidecar::with(policy).environment(&environment);
    planned.alone().await
}

/// A Redis, a receiver, and a sidecar that uses both; a key has this quota.
async fn scene(quota: u64) -> (Redis, Collector, Sidecar) {
    let (redis, collector) = (Redis::start().await, Collector::start().await);
    let policy = policy(&redis.url(), "sliding_log", quota, "1h");
    let sidecar = traced(&policy, collector.endpoint()).await;
    (redis, collector, sidecar)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_and_store_spans_of_a_decision_are_in_the_callers_trace() {
    let (_redis, collector, sidecar) = scene(2).await;
    let (header, trace, parent) = traceparent(7, true);
    let three = json!([decision(), decision(), decision()]);
    let answer = ask(&sidecar, Some(&header), three).await;
    assert_eq!(answer["verdicts"][2]["outcome"], "denied", "{answer}");
    eventually("the spans have come", async || {
        !collector.spans("decide").is_empty()
    })
    .await;

    let [decide] = collector.spans("decide").try_into().unwrap();
    is_in(&decide, &trace, &parent);
    for (name, value) in [
        ("decisions", "3"),
        ("admitted", "2"),
        ("denied", "1"),
        ("unavailable", "0"),
        ("errors", "0"),
    ] {
        let found = attribute(&decide, &format!("sluicegate.{name}"));
        assert_eq!(found, value, "{name}");
    }
    let [queue] = collector.spans("queue").try_into().unwrap();
    let [store] = collector.spans("store").try_into().unwrap();
    for child in [&queue, &store] {
        is_in(child, &trace, &decide.span_id);
        assert!(child.start_time_unix_nano <= child.end_time_unix_nano);
        assert!(child.end_time_unix_nano <= decide.end_time_unix_nano);
    }
    assert_eq!(queue.links[0].span_id, store.span_id);
    assert_eq!(attribute(&store, "sluicegate.decisions"), "3");
    assert_eq!(attribute(&store, "sluicegate.buckets"), "1");
    assert_eq!(collector.resources("service.name")[0], "sluicegate");
    assert!(!collector.has(KEY));

    // A caller that is not sampled, in its own trace.
    let (unsampled, _, _) = traceparent(8, false);
    ask(&sidecar, Some(&unsampled), json!([decision()])).await;
    let (sampled, last, _) = traceparent(9, true);
    ask(&sidecar, Some(&sampled), json!([decision()])).await;
    eventually("the last has come", async || {
        collector
            .spans("decide")
            .iter()
            .any(|span| span.trace_id == last)
    })
    .await;
    assert_eq!(collector.spans("decide").len(), 2);
    // The denial was cached, so the store was not asked.
    assert_eq!(collector.spans("store").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_share_a_store_call_are_linked_to_it() {
    let (redis, collector, sidecar) = scene(1_000).await;
    let files = async || sidecar.metric("process_open_fds").await;
    let files_before = files().await;
    ask(&sidecar, None, json!([decision()])).await;
    // While a call waits for Redis, later requests queue up and share the next call.
    redis.pause();
    let mut waiting = tokio::task::JoinSet::new();
    for trace in 1..=8 {
        let (header, _, _) = traceparent(trace, true);
        let url = sidecar.url("/v1/decide");
        waiting.spawn(async move {
            let body = json!({ "decisions": [decision()] }).to_string();
            let request = client().post(url).header("traceparent", header);
            request.body(body).send().await.unwrap().status().as_u16()
        });
    }
    // A connection for each request.
    eventually("all requests have arrived", async || {
        files().await >= files_before + 8.0
    })
    .await;
    redis.resume();
    assert_eq!(waiting.join_all().await, [200; 8]);
    eventually("all spans have come", async || {
        let traces = collector.spans("queue").into_iter();
        traces.filter(|span| span.trace_id[0] < 9).count() >= 8
            && collector
                .spans("store")
                .iter()
                .any(|span| !span.links.is_empty())
    })
    .await;
    let shared = collector.spans("store");
    let shared = shared.iter().find(|span| !span.links.is_empty()).unwrap();
    let decides = collector.spans("decide");
    let parent = decides
        .iter()
        .find(|span| span.span_id == shared.parent_span_id);
    assert_eq!(parent.unwrap().trace_id, shared.trace_id);
    for link in &shared.links {
        assert_ne!(link.trace_id, shared.trace_id);
        let linked = decides.iter().find(|span| span.span_id == link.span_id);
        assert_eq!(linked.unwrap().trace_id, link.trace_id);
        let queue = collector.spans("queue").into_iter();
        let mut queue = queue.filter(|span| span.parent_span_id == link.span_id);
        assert_eq!(queue.next().unwrap().links[0].span_id, shared.span_id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_through_envoy_finds_its_decision_in_its_own_trace() {
    let (_redis, collector, sidecar) = scene(1).await;
    let mut plugin = plugin(per_key("deny"));
    plugin["sidecar"]["traces"] = true.into();
    let upstream = upstream::start().await;
    let envoy = Envoy::asking(sidecar.port)
        .upstream(upstream)
        .plugin(plugin)
        .alone()
        .await;
    let get = async |header: &str| {
        let request = client().get(envoy.url("/")).header("x-api-key", KEY);
        let request = request.header("traceparent", header);
        request.send().await.unwrap().status().as_u16()
    };
    let (first, trace, parent) = traceparent(7, true);
    assert_eq!(get(&first).await, 200);
    // A client may send anything; the request must be served like others.
    assert_eq!(get("00-nonsense-\"-01").await, 429);
    eventually("the span has come", async || {
        !collector.spans("decision").is_empty()
    })
    .await;
    let [decision] = collector.spans("decision").try_into().unwrap();
    is_in(&decision, &trace, &parent);
    for (name, value) in [
        ("limit", "per-key"),
        ("verdict", "admitted"),
        ("source", "store"),
    ] {
        assert_eq!(attribute(&decision, &format!("sluicegate.{name}")), value);
    }
    let decides = collector.spans("decide");
    let decide = decides.iter().find(|span| span.trace_id == trace).unwrap();
    assert_eq!(decide.parent_span_id, decision.span_id);
    assert_eq!(decision.links[0].span_id, decide.span_id);
    for name in ["queue", "store"] {
        let spans = collector.spans(name);
        let own = spans.iter().find(|span| span.trace_id == trace).unwrap();
        assert_eq!(own.parent_span_id, decide.span_id, "{name}");
    }
    assert!(!collector.has(KEY));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_is_logged_once_and_delays_nothing() {
    // Nobody listens there; the password in the URL must not be logged.
    let endpoint = format!("http://user:{KEY}@127.0.0.1:{}", free_port());
    let text = policy("memory", "sliding_log", 1, "1h");
    let mut sidecar = traced(&text, endpoint).await;
    for _ in 0..500 {
        ask(&sidecar, None, json!([decision()])).await;
    }
    logs(&sidecar, "the collector does not accept spans").await;
    let lines = sidecar.log().matches("does not accept spans").count();
    assert!(lines <= 3, "{}", sidecar.log());
    sidecar.signal("TERM");
    sidecar.wait().await;
    assert!(!sidecar.log().contains(KEY), "{}", sidecar.log());
}
