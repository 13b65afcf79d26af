//! Who is admitted, who is denied, and the response headers.

use std::time::{Duration, SystemTime};

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_engine::{Algorithm, BucketSpec, Calendar, CalendarUnit};
use sluicegate_tests::client::client;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{self, Sidecar};

use super::support::{
    Chain, Policy, check, decide, decided, envoy, number, per_key, plugin, policy, pushed, take,
};

#[tokio::test]
async fn exactly_the_limit_is_admitted_and_the_promised_retry_succeeds() {
    let chain = Chain::of("sliding_log", 5, "3s").await;
    let denied = loop {
        // On a machine that stalls, the window has moved on meanwhile.
        let mut answers = Vec::new();
        for _ in 0..6 {
            answers.push(chain.get("/", "alice").await);
        }
        let denied = answers.pop().unwrap();
        assert!(answers.iter().all(|answer| answer.status() == 200));
        if denied.status() == 429 {
            break denied;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    assert_eq!(number(&denied, "x-ratelimit-limit"), 5);
    assert_eq!(number(&denied, "x-ratelimit-remaining"), 0);
    let (retry_s, retry_ms) = (
        number(&denied, "retry-after"),
        number(&denied, "retry-after-ms"),
    );
    assert!((1..=3_000).contains(&retry_ms), "{retry_ms}");
    assert_eq!(retry_s, retry_ms.div_ceil(1_000));
    assert!((retry_s..=3).contains(&number(&denied, "x-ratelimit-reset")));
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    let body: Value = serde_json::from_str(&denied.text().await.unwrap()).unwrap();
    assert_eq!(
        (&body["status"], &body["limit"]),
        (&json!(429), &json!("per-key"))
    );
    assert!(!body.to_string().contains("alice"), "{body}");

    // Another key has its own quota.
    assert_eq!(chain.status("/", "bob").await, 200);
    // The sleep is the tested promise itself.
    tokio::time::sleep(Duration::from_secs(retry_s)).await;
    assert_eq!(chain.status("/", "alice").await, 200);

    let counted = async |verdict| decided(&chain.sidecar, "per-key", "store", verdict).await;
    assert!(counted("admitted").await >= 7 && counted("denied").await >= 1);
}

#[tokio::test]
async fn all_rules_that_match_are_asked_together_and_a_denial_takes_nothing() {
    let rules = json!([
        { "name": "search", "match": { "path_prefix": "/search", "methods": ["GET"] },
          "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }], "cost": 2 }], "when_unavailable": "deny" },
        { "name": "all",
          "checks": [{ "limit": "everyone", "key": [{ "constant": "everyone" }] }], "when_unavailable": "deny" },
    ]);
    let policy = |url: &str| {
        let policy = Policy::on(url).window("per-key", "sliding_log", 5, "1h");
        policy.window("everyone", "sliding_log", 4, "24h").text()
    };
    let chain = Chain::start(policy, plugin(rules)).await;
    assert_eq!(chain.status("/search", "alice").await, 200);
    assert_eq!(chain.status("/search?q=1", "alice").await, 200);
    // 4 of alice's 5 are taken: a search for 2 more is denied, and must not take from everyone's 4 either.
    for _ in 0..5 {
        assert_eq!(chain.status("/search", "alice").await, 429);
    }
    assert_eq!(chain.status("/other", "alice").await, 200);
    assert_eq!(chain.status("/search", "bob").await, 200);
    assert_eq!(chain.status("/other", "carol").await, 429);
}

#[tokio::test]
async fn a_secret_leaves_envoy_only_as_a_hash() {
    let chain = Chain::of("sliding_log", 1, "1h").await;
    assert_eq!(chain.status("/", "hunter2").await, 200);
    assert_eq!(chain.status("/", "hunter2").await, 429);
    let keys = chain.redis.keys().await;
    assert!(
        !keys.is_empty() && keys.iter().all(|key| !key.contains("hunter2")),
        "{keys:?}"
    );
    for text in [
        chain.sidecar.metrics().await,
        chain.sidecar.log(),
        chain.envoy.log(),
    ] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_micros()).unwrap()
}

/// Start and end of the current calendar window.
fn window(unit: CalendarUnit, time_zone: &str) -> (u64, u64) {
    let calendar = Calendar::new(unit, time_zone).unwrap();
    let spec = BucketSpec {
        algorithm: Algorithm::CalendarWindow(calendar),
        quota: 1,
        window_us: calendar.longest_us(),
    };
    spec.window_at(now_us()).unwrap()
}

#[tokio::test]
async fn a_calendar_window_tells_its_own_length_and_its_end() {
    let month = "month, time_zone: Europe/Berlin";
    let mut rules = per_key("deny");
    rules[0]["reply"] = json!({ "on_admitted": true });
    // A sidecar's first question of all too: it does not know Redis's clock yet, by which windows are sent.
    let policy = |url: &str| policy(url, "fixed_window", 2, month);
    let chain = Chain::start(policy, plugin(rules)).await;
    let (start_us, end_us) = window(CalendarUnit::Month, "Europe/Berlin");
    for n in 0..2 {
        assert_eq!(chain.status("/", "alice").await, 200, "request {n}");
    }
    let denied = chain.get("/", "alice").await;
    if now_us() >= end_us {
        // A month that ended just now has another test's hour.
        return;
    }
    assert_eq!(denied.status(), 429);
    let seconds = (end_us - start_us) / 1_000_000;
    let policy_header = denied.headers()["ratelimit-policy"].to_str().unwrap();
    assert!(
        policy_header.ends_with(&format!(";q=2;w={seconds}")),
        "{policy_header}"
    );
    let left_s = (end_us - now_us()).div_ceil(1_000_000);
    let retry_s = number(&denied, "retry-after");
    assert!(
        (left_s..left_s + 20).contains(&retry_s),
        "{retry_s} {left_s}"
    );
}

/// The windows of keys with an override were those of 1970: a day had 48 hours, and the search for them kept all other
/// requests waiting.
#[tokio::test]
async fn an_unlimited_or_blocked_key_is_told_the_current_calendar_window() {
    for (unit, name) in [(CalendarUnit::Day, "day"), (CalendarUnit::Month, "month")] {
        let redis = Redis::start().await;
        let fields = format!(
            "algorithm: fixed_window, windows: [{{ quota: 9, per: {name}, time_zone: America/New_York }}], \
             overrides: [{{ key: u, unlimited: true }}, {{ key: b, blocked: true }}]"
        );
        let policy = Policy::on(redis.url()).limit("per-key", &fields).text();
        let sidecar = Sidecar::alone(&policy).await;
        let ask = async |key: &str| take(&sidecar, "per-key", key).await;
        let window_ms = || {
            let (start_us, end_us) = window(unit, "America/New_York");
            (end_us - start_us) / 1_000
        };
        let expected = window_ms();
        let answers = [
            ask("x").await,
            ask("u").await,
            ask("x").await,
            ask("b").await,
        ];
        if window_ms() != expected {
            // Another window began, of another length.
            continue;
        }
        let told = answers.each_ref().map(|answer| &answer["window_ms"]);
        assert_eq!(told, [&json!(expected); 4], "{answers:?}");
        let outcomes = answers.each_ref().map(|answer| &answer["outcome"]);
        assert_eq!(outcomes, ["admitted", "admitted", "admitted", "denied"]);
        assert_eq!(answers[3]["retry_after_ms"], json!(expected));
    }
}

/// A limit with `rate: 0` denies as a block without an end does, and needs no store.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_tier_does_not_allow_at_all_is_denied_without_a_time() {
    let mut redis = Redis::start().await;
    let tiers = "tiers: { by: { header: x-plan }, none: 0, default: 50000/1h }";
    let policy = format!(
        "store: {}\nlimits:\n  plan:\n    key: {{ header: x-api-key, trusted: true, plain: true }}\n    {tiers}\n    \
         algorithm: token_bucket\n    lease: {{ longest: 100ms }}\n    reply: {{ headers: both }}\n",
        redis.url()
    );
    let sidecar = Sidecar::alone(&policy).await;
    sidecar.knows_of(1).await;
    let mut plugin = pushed();
    plugin["rule_sets"]["default"] = json!("default");
    let envoy = envoy(sidecar.port, plugin).await;
    let ask = async |plan: &str| {
        let fields = [("x-api-key", "k"), ("x-plan", plan)];
        let answer = envoy.get("/", &fields).await;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        (status, headers, answer.text().await.unwrap())
    };
    let is_denied = async || {
        let (status, headers, body) = ask("none").await;
        assert_eq!(status, 429, "{body}");
        assert!(
            body.contains("by limit `plan.none`, this request is not allowed at all"),
            "{body}"
        );
        assert!(!body.contains("retry_after_ms"), "{body}");
        for absent in ["retry-after", "retry-after-ms", "x-ratelimit-reset"] {
            assert!(!headers.contains_key(absent), "{headers:?}");
        }
        assert_eq!(headers["ratelimit"], "\"plan.none/3600s\";r=0");
    };
    // Twice: the second time it is cached.
    is_denied().await;
    is_denied().await;
    assert_eq!(ask("gold").await.0, 200);
    assert!(decided(&sidecar, "plan.none", "override", "denied").await >= 1);

    let free = json!({ "limit": "plan.none", "key": "k", "cost": 0 });
    let free = decide(&sidecar, json!({ "checks": [free] })).await;
    assert_eq!(
        (&free["outcome"], &free["remaining"]),
        (&json!("admitted"), &json!(0))
    );
    for command in ["decide", "peek"] {
        let words = format!(
            "{command} --limit plan.none --key k --sidecar {}",
            sidecar.url("")
        );
        let told = sidecar::command(&words).1;
        assert!(told.contains("is not allowed at all"), "{told}");
        assert!(
            !told.contains("available") && !told.contains("retry in"),
            "{told}"
        );
    }
    let one = json!({ "decisions": [{ "checks": [check("plan.none", "k")] }] });
    let answer = client()
        .post(sidecar.url("/v1/decide?denied=429"))
        .json(&one);
    let answer = answer.send().await.unwrap();
    assert_eq!(answer.status(), 429);
    assert!(!answer.headers().contains_key("retry-after"), "{answer:?}");

    redis.kill();
    sidecar.reaches("sluicegate_store_up", 0.0).await;
    is_denied().await;
    redis.restart().await;
    sidecar.reaches("sluicegate_store_up", 1.0).await;

    // An operator may give a key a quota there.
    let allowed = json!({ "limit": "plan.none", "key": "x-api-key=k", "quota": 2 });
    let (status, told) = sidecar
        .change_override(Method::PUT, allowed.to_string())
        .await;
    assert_eq!(status, 200, "{told}");
    eventually("the override is in force in Envoy", async || {
        ask("none").await.0 == 200
    })
    .await;
    assert_eq!(ask("none").await.0, 200);
    let (status, headers, _) = ask("none").await;
    assert_eq!(status, 429);
    assert!(headers.contains_key("retry-after"), "{headers:?}");
}
