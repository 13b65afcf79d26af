//! The page's files and its stream over HTTP, without a browser.

use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

const POLICY: &str = "limits: { a: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }";
/// The sidecar's own bound.
pub const MAX_VIEWERS: usize = 32;

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

#[tokio::test]
async fn viewers_are_bounded_and_one_that_leaves_makes_room() {
    let sidecar = Sidecar::alone(POLICY).await;
    let mut viewers = Vec::new();
    for _ in 0..MAX_VIEWERS {
        viewers.push(ask(&sidecar, "/page/stream").await);
    }
    for viewer in &mut viewers {
        assert_eq!(viewer.status(), 200);
        let first = viewer.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"event: past\n"), "{first:?}");
        let second = viewer.chunk().await.unwrap().unwrap();
        assert!(second.starts_with(b"event: snapshot\n"), "{second:?}");
    }
    assert_eq!(ask(&sidecar, "/page/stream").await.status(), 503);
    // Other requests are still served.
    assert_eq!(ask(&sidecar, "/healthz").await.status(), 200);
    viewers.pop();
    let has_room = async || ask(&sidecar, "/page/stream").await.status() == 200;
    eventually("there is room for one more", has_room).await;
}

/// Redis answers PING throughout, and an outage of some seconds used to be shown as one outage per second.
#[tokio::test]
async fn an_outage_in_which_redis_answers_pings_is_shown_as_one() {
    let redis = Redis::start().await;
    let policy = format!("store: {}\nstore_timeout: 2s\n{POLICY}", redis.url())
        // Otherwise the sidecar would decide by its share of the limit.
        .replace("algorithm:", "when_store_is_down: deny, algorithm:");
    let sidecar = Sidecar::alone(&policy).await;
    let mut viewer = ask(&sidecar, "/page/stream").await;
    let demand_replicas = async |number: u32| {
        let words = format!("CONFIG SET min-replicas-to-write {number}");
        let _: () = redis.command(&words).await;
    };
    let decide = async |key: u64| decide(&sidecar, "a", key).await;
    assert!(decide(0).await.contains("admitted"));
    // Like a failed disk or lost replicas: Redis answers reads and refuses writes.
    demand_replicas(1).await;
    let outage = async {
        // For six seconds at least.
        for key in 1..=120 {
            assert!(decide(key).await.contains("unavailable"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let watched = async {
        let mut newest = String::new();
        loop {
            let heard = viewer.chunk().await.unwrap().unwrap();
            let heard = String::from_utf8_lossy(&heard);
            newest.push_str(&heard);
            if newest.contains("store_back") {
                return newest;
            }
        }
    };
    let over = async {
        outage.await;
        demand_replicas(0).await;
        let decides = async || decide(0).await.contains("mitted");
        eventually("decisions are made again", decides).await;
    };
    let (heard, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(60), watched), over);
    let heard = heard.expect("the store is back");
    let last = heard.rsplit("event: snapshot").next().unwrap();
    assert_eq!(last.matches("\"kind\":\"store_lost\"").count(), 1, "{last}");
    let lost = last.split("\"kind\":\"store_lost\"").nth(1).unwrap();
    let lost = lost.split('}').next().unwrap();
    assert!(lost.contains("\"times\":1"), "{lost}");
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
    let mut viewer = ask(&sidecar, "/page/stream").await;
    let first = snapshot(&mut viewer).await.to_string();
    assert!(first.contains("\"kind\":\"store_lost\""), "{first}");
    assert!(first.contains("\"state\":\"lost\""), "{first}");
}

/// The next snapshot of a stream.
async fn snapshot(viewer: &mut Response) -> Value {
    let heard = async {
        let mut heard = String::new();
        while !heard.contains("event: snapshot") || !heard.ends_with("\n\n") {
            heard += &String::from_utf8_lossy(&viewer.chunk().await.unwrap().unwrap());
        }
        heard
    };
    let heard = tokio::time::timeout(Duration::from_secs(10), heard).await;
    let heard = heard.expect("a snapshot");
    let (_, data) = heard.rsplit_once("event: snapshot\ndata: ").unwrap();
    serde_json::from_str(data.trim()).unwrap()
}

/// The first snapshot that is as it should be.
async fn snapshot_in_which(
    what: &str,
    viewer: &mut Response,
    holds: impl Fn(&Value) -> bool,
) -> Value {
    for _ in 0..20 {
        let now = snapshot(viewer).await;
        if holds(&now) {
            return now;
        }
    }
    panic!("no snapshot in which {what}");
}

/// Histories are kept of 128 limits, but whether a limit denies is known of every one.
#[tokio::test]
async fn each_of_many_limits_is_told_to_deny() {
    let name = |n: usize| format!("limit-{n:03}");
    let policy = (0..200).fold(Policy::on("memory"), |policy, n| {
        policy.window(&name(n), "sliding_log", 1, "1h")
    });
    let sidecar = Sidecar::alone(&policy.text()).await;
    let mut viewer = ask(&sidecar, "/page/stream").await;
    let decide = async |limit: usize| decide(&sidecar, &name(limit), 0).await;
    for n in 0..200 {
        assert!(decide(n).await.contains("admitted"));
    }
    // Their counts are sampled before one of them denies.
    snapshot_in_which("200 requests were admitted", &mut viewer, |now| {
        let counts = now["sample"]["counts"].as_array().unwrap().iter();
        counts.filter_map(|row| row[0].as_u64()).sum::<u64>() == 200
    })
    .await;
    assert!(decide(150).await.contains("denied"));
    let denying = |now: &Value| -> Vec<Value> {
        let counts = now["sample"]["counts"].as_array().unwrap();
        let series = now["series"].as_array().unwrap().iter().zip(counts);
        series
            .filter(|(series, _)| !series["denying_last_ms"].is_null())
            .map(|(series, counts)| json!([series["name"], series["denies"], counts]))
            .collect()
    };
    let denies = |now: &Value| !denying(now).is_empty();
    let now = snapshot_in_which("a limit denies", &mut viewer, denies).await;
    assert_eq!(denying(&now), [json!(["limit-150", true, [1, 1, 0, 0, 0]])]);
    // Who comes now learns that some limits are missing in the past.
    let mut late = ask(&sidecar, "/page/stream").await;
    let mut heard = String::new();
    while !heard.contains("event: snapshot") {
        heard += &String::from_utf8_lossy(&late.chunk().await.unwrap().unwrap());
    }
    assert!(heard.contains("\"left_out\":true"), "{heard}");
}

#[tokio::test]
async fn the_stream_tells_what_leases_hold_only_where_a_limit_has_some() {
    let leased = POLICY.replace("sliding_log", "fixed_window");
    let leased = leased.replace("quota: 1, per: 1s }]", "quota: 500, per: 1m }], lease: {}");
    for (policy, told) in [(POLICY, false), (leased.as_str(), true)] {
        let sidecar = Sidecar::alone(policy).await;
        let mut viewer = ask(&sidecar, "/page/stream").await;
        let heard = snapshot(&mut viewer).await;
        let leases = told.then(|| json!({ "held": 0, "spent": 0 }));
        assert_eq!(heard.get("leases"), leases.as_ref(), "{heard}");
    }
}
