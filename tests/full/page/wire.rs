//! The page's files and its snapshots over HTTP, without a browser.

use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

const POLICY: &str = "limits: { a: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";

/// The outcome of a decision, in the whole answer.
async fn decide(sidecar: &Sidecar, limit: &str, key: u64) -> String {
    let check = json!({ "limit": limit, "key": key.to_string() });
    let answer = sidecar.answer(json!([{ "checks": [check] }])).await;
    answer.to_string()
}

async fn ask(sidecar: &Sidecar, path: &str) -> Response {
    let url = sidecar.admin(path);
    client().get(url).send().await.unwrap()
}

#[tokio::test]
async fn every_file_has_a_content_security_policy_that_allows_only_the_page() {
    let sidecar = Sidecar::alone(POLICY).await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page/page.css", "text/css"),
        ("/page/page.js", "text/javascript"),
        ("/page/icon.svg", "image/svg+xml"),
    ] {
        let answer = ask(&sidecar, path).await;
        assert_eq!(answer.status(), 200, "{path}");
        let header = |name| answer.headers()[name].to_str().unwrap();
        assert!(header("content-type").starts_with(kind), "{path}");
        let allowed = header("content-security-policy");
        assert!(allowed.starts_with("default-src 'none'; script-src 'self';"));
        assert!(!allowed.contains("unsafe"), "{allowed}");
        assert_eq!(header("x-content-type-options"), "nosniff");
    }
    assert_eq!(ask(&sidecar, "/page/nothing.js").await.status(), 404);
    assert_eq!(ask(&sidecar, "/page/..%2fpage.rs").await.status(), 404);
}

/// Redis answers PING throughout, and an outage of some seconds used to be shown as one outage per second.
#[tokio::test]
async fn an_outage_in_which_redis_answers_pings_is_shown_as_one() {
    let redis = Redis::start().await;
    let policy = format!("store: {}\nstore_timeout: 2s\n{POLICY}", redis.url())
        // Otherwise the sidecar would decide by its share of the limit.
        .replace("algorithm:", "when_store_is_down: deny, algorithm:");
    let sidecar = Sidecar::alone(&policy).await;
    let demand_replicas = async |number: u32| {
        let words = format!("CONFIG SET min-replicas-to-write {number}");
        let _: () = redis.command(&words).await;
    };
    let decide = async |key: u64| decide(&sidecar, "a", key).await;
    assert!(decide(0).await.contains("admitted"));
    // Like a failed disk or lost replicas: Redis answers reads and refuses writes.
    demand_replicas(1).await;
    // For six seconds at least.
    for key in 1..=120 {
        assert!(decide(key).await.contains("unavailable"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    demand_replicas(0).await;
    let decides = async || decide(0).await.contains("mitted");
    eventually("decisions are made again", decides).await;
    let is_back = async || {
        let newest = events(&sidecar).await.swap_remove(0);
        newest["kind"] == "store_back"
    };
    eventually("the store is back", is_back).await;
    let events = events(&sidecar).await;
    let lost: Vec<_> = events
        .iter()
        .filter(|event| event["kind"] == "store_lost")
        .collect();
    assert_eq!(lost.len(), 1, "{events:?}");
    assert_eq!(lost[0]["times"], 1, "{events:?}");
}

#[tokio::test]
async fn an_outage_before_the_first_viewer_is_among_the_events() {
    // Nothing listens on this port.
    let away = format!("store: redis://127.0.0.1:1\n{POLICY}");
    let sidecar = Sidecar::alone(&away).await;
    let is_away = async || sidecar.readyz().await.contains("has not answered");
    eventually("two calls to the store have failed", async || {
        sidecar.metric("sluicegate_store_up").await == 0.0 && is_away().await
    })
    .await;
    let first = snapshot(&sidecar, 0).await;
    assert_eq!(first["events"][0]["kind"], "store_lost", "{first}");
    assert_eq!(first["store"]["health"]["state"], "lost", "{first}");
}

async fn shown(sidecar: &Sidecar, query: &str) -> Value {
    let answer = ask(sidecar, &format!("/page/snapshot{query}")).await;
    assert_eq!(answer.status(), 200);
    serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
}

/// What the page shows, with the samples after a time.
async fn snapshot(sidecar: &Sidecar, after_ms: u64) -> Value {
    shown(sidecar, &format!("?after={after_ms}")).await
}

async fn events(sidecar: &Sidecar) -> Vec<Value> {
    let shown = snapshot(sidecar, 0).await;
    shown["events"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_of_many_limits_has_its_counts_and_is_told_to_deny() {
    let name = |n: usize| format!("limit-{n:03}");
    let policy = (0..200).fold(Policy::on("memory"), |policy, n| {
        policy.window(&name(n), "sliding_log", 1, "1h")
    });
    let sidecar = Sidecar::alone(&policy.text()).await;
    for n in 0..200 {
        assert!(decide(&sidecar, &name(n), 0).await.contains("admitted"));
    }
    assert!(decide(&sidecar, &name(150), 0).await.contains("denied"));
    let total = |samples: &Value, kind: usize| -> u64 {
        let samples = samples.as_array().unwrap().iter();
        let counts = samples.flat_map(|sample| sample["counts"].as_object().unwrap().values());
        counts.filter_map(|row| row[kind].as_u64()).sum()
    };
    eventually("all of them are sampled", async || {
        let samples = &snapshot(&sidecar, 0).await["samples"];
        total(samples, 0) == 200 && total(samples, 1) == 1
    })
    .await;
    let shown = snapshot(&sidecar, 0).await;
    let denying = shown["denying"].as_object().unwrap();
    assert_eq!(denying.keys().collect::<Vec<_>>(), ["limit-150"]);
    assert_eq!(denying["limit-150"]["goes_on"], true);
}

#[tokio::test]
async fn a_page_that_has_a_sample_gets_only_later_ones_and_the_counters_are_not_read_for_each_page()
{
    let sidecar = Sidecar::alone(POLICY).await;
    let sampled = async |after_ms| {
        let shown = snapshot(&sidecar, after_ms).await;
        let samples = shown["samples"].as_array().unwrap();
        let times = samples
            .iter()
            .map(|sample| sample["at_ms"].as_u64().unwrap());
        times.collect::<Vec<_>>()
    };
    eventually("there are three", async || sampled(0).await.len() >= 3).await;
    let all = sampled(0).await;
    let close = all.windows(2).filter(|pair| pair[1] - pair[0] < 900);
    assert_eq!(close.count(), 0, "{all:?}");
    let later = sampled(all[1]).await;
    assert_eq!(later[0], all[2]);
    // Anything else is answered with all of them.
    for query in ["", "?after=", "?after=x", "?before=1"] {
        let shown = shown(&sidecar, query).await;
        assert_eq!(shown["samples"][0]["at_ms"], all[0], "{query}");
    }
}

#[tokio::test]
async fn the_page_tells_what_leases_hold_only_where_a_limit_has_some() {
    let leased = POLICY.replace("sliding_log", "fixed_window");
    let leased = leased.replace("quota: 1, per: 1s }]", "quota: 500, per: 1m }], lease: {}");
    for (policy, told) in [(POLICY, false), (leased.as_str(), true)] {
        let sidecar = Sidecar::alone(policy).await;
        let shown = snapshot(&sidecar, 0).await;
        let leases = told.then(|| json!({ "held": 0, "spent": 0 }));
        assert_eq!(shown["leases"], json!(leases), "{shown}");
    }
}

#[tokio::test]
async fn the_page_tells_what_is_reserved_until_it_is_settled() {
    let policy = "limits: { a: { algorithm: sliding_log, windows: [{ quota: 90, per: 1h }] } }";
    let sidecar = Sidecar::alone(policy).await;
    let reserved = async || snapshot(&sidecar, 0).await["reserved"].take();
    let settle = async |receipt: &Value, field: &str, vm: &str| {
        let entry = json!({ "limit": "a", "key": "k", "receipt": receipt, field: 1 });
        let body = json!({ "settles": [entry] });
        let call = client()
            .post(sidecar.url("/v1/settle"))
            .header("sluicegate-vm", vm);
        let answer = call
            .header("content-type", "application/json")
            .body(body.to_string())
            .send();
        assert_eq!(answer.await.unwrap().status(), 200);
    };
    assert_eq!(reserved().await, json!({}));
    // A fifth of the quota each.
    let check = json!({ "limit": "a", "key": "k", "cost": 90, "most": 20, "within_ms": 600_000 });
    let decisions = vec![json!({ "checks": [check] }); 3];
    let mut answer = sidecar.answer(decisions.into()).await;
    let mut receipts = answer["verdicts"].as_array_mut().unwrap().iter_mut();
    let mut receipt = || receipts.next().unwrap()["receipt"][0].take();
    let of = |requests, units, at_most| json!({ "a": { "requests": requests, "units": units, "at_most": at_most } });
    assert_eq!(reserved().await, of(3, 54, false));
    settle(&receipt(), "units", "").await;
    assert_eq!(reserved().await, of(2, 36, false));
    // Kept.
    settle(&receipt(), "within_ms", "").await;
    assert_eq!(reserved().await, of(1, 18, false));
    // A filter settles what another sidecar granted: some of this one's may have been settled there.
    let other = json!({ "checks": [{ "limit": "a", "key": "k" }], "receipt": true });
    let mut other = sidecar.answer(json!([other])).await;
    let other = other["verdicts"][0]["receipt"][0].take();
    settle(&other, "units", "5f0c6b1a9d3e4f2c8b7a6d5e4f3c2b1a").await;
    assert_eq!(reserved().await, of(1, 18, true));
}

#[tokio::test]
async fn the_page_tells_of_slots_only_where_some_are_in_use() {
    let policy = "limits: { a: { algorithm: concurrency, windows: [{ quota: 9, per: 1h }] } }";
    let sidecar = Sidecar::alone(policy).await;
    let slots = async || snapshot(&sidecar, 0).await["slots"].take();
    assert_eq!(slots().await, json!([]));
    for key in [1, 2, 2] {
        decide(&sidecar, "a", key).await;
    }
    let shown = slots().await;
    let (oldest, all) = (&shown[0]["oldest"], shown.as_array().unwrap().len());
    assert_eq!((&shown[0]["in_use"], all), (&json!(3), 1), "{shown}");
    assert_eq!(
        (&oldest["limit"], &oldest["slots"]),
        (&json!("a"), &json!(1))
    );
    // printf %s 1 | sha256sum | cut -c1-20
    assert_eq!(oldest["subject"], "6b86b273ff34fce19d6b", "{shown}");
}
