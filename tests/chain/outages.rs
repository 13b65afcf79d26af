//! Behaviour while a part is down, and when it is back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::ask::{failures, logs};
use sluicegate_tests::client::get;
use sluicegate_tests::process::{eventually, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{self, Chain, Policy, policy, take};

/// The rules `/allow` and `/deny` are named after their `when_unavailable`; both have the limit `per-key`.
fn plugin() -> Value {
    let rule = |when: &str| {
        json!({
            "name": when, "match": { "path_prefix": format!("/{when}") },
            "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }, { "path": true }] }],
            "when_unavailable": when,
        })
    };
    let mut plugin = support::plugin(json!([rule("allow"), rule("deny")]));
    plugin["sidecar"]["timeout"] = json!("1s");
    plugin
}

async fn chain() -> Chain {
    let policy = |url: &str| {
        let policy = Policy::on(url).timeout("500ms");
        policy.window("per-key", "sliding_log", 3, "1h").text()
    };
    let chain = Chain::start(policy, plugin()).await;
    chain.sidecar.knows_of(1).await;
    chain
}

/// Asserts that both rules give their own answer, before the client gives up.
async fn no_verdict_is_available(chain: &Chain, key: &str) {
    for (path, status) in [("/allow", 200), ("/deny", 503)] {
        for _ in 0..3 {
            let answer = chain.get(path, key).await;
            assert_eq!(answer.status(), status, "{path}");
            if status == 503 {
                assert_eq!(answer.headers()["retry-after"], "1");
                assert!(
                    answer
                        .text()
                        .await
                        .unwrap()
                        .contains("rate limiter did not answer")
                );
            }
        }
    }
}

/// Asserts that the limit of 3 applies to a key that is unused so far.
async fn limits_hold(chain: &Chain, key: &str) {
    eventually("a verdict comes again", async || {
        chain.status("/deny", &format!("probe-{key}")).await != 503
    })
    .await;
    for path in ["/allow", "/deny"] {
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(chain.status(path, key).await);
        }
        assert_eq!(statuses, [200, 200, 200, 429, 429], "{path}");
    }
}

/// Waits until the sidecar knows it: before that, a request has no verdict, and its rule decides.
async fn redis_is_down(chain: &Chain) {
    chain.sidecar.reaches("sluicegate_store_up", 0.0).await;
}

#[tokio::test]
async fn without_redis_a_share_of_each_limit_applies_and_afterwards_the_whole_limit() {
    let mut chain = chain().await;
    limits_hold(&chain, "before").await;
    chain.redis.kill();
    redis_is_down(&chain).await;
    // This sidecar's share is the whole limit, because there is no other sidecar.
    limits_hold(&chain, "during").await;
    let (refused, late) = tokio::join!(
        failures(&chain.sidecar, "connection"),
        failures(&chain.sidecar, "timeout")
    );
    assert!(refused + late >= 1.0);
    chain.redis.restart().await;
    limits_hold(&chain, "after").await;
}

/// Its share depends on what Redis told the process before, which a new one has not heard.
#[tokio::test]
async fn a_sidecar_that_restarts_while_redis_is_away_gives_no_verdict_and_the_runbook_warns_of_it()
{
    let mut chain = chain().await;
    chain.redis.kill();
    redis_is_down(&chain).await;
    limits_hold(&chain, "during").await;
    chain.sidecar.kill();
    chain.sidecar.restart().await;
    redis_is_down(&chain).await;
    no_verdict_is_available(&chain, "restarted").await;
    // Nothing replaces the pod or takes it out of a Service.
    let ready = chain.sidecar.admin("/readyz");
    assert_eq!(get(&ready).await.0, 200);
    chain.redis.restart().await;
    limits_hold(&chain, "after").await;

    let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
    let (start, rest) = page.split_once("\n## The alerts\n").unwrap();
    assert!(start.contains("While Redis is down, do not restart"));
    let (_, section) = rest.split_once("\n## SluicegateStoreFailing\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    assert!(section.contains("Do not restart or scale sidecars"));
}

#[tokio::test]
async fn an_outage_is_logged_once_in_ten_seconds_and_when_it_ends() {
    let mut redis = Redis::start().await;
    let policy = policy(&redis.url(), "sliding_log", 3, "1h");
    let json = ["--log-format", "json"];
    let sidecar = Sidecar::with(&policy).arguments(&json).alone().await;
    redis.kill();
    for n in 0..100 {
        take(&sidecar, "per-key", &n.to_string()).await;
    }
    redis.restart().await;
    logs(&sidecar, "is back").await;
    let log = sidecar.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line["level"] == "WARN")
        .collect();
    // One of each kind in ten seconds, and not one for each of the hundred.
    assert!((1..=30).contains(&failed.len()), "{failed:#?}");
    assert!(failed.iter().all(|line| line["kind"].is_string()));
    let messages = lines.iter().filter_map(|line| line["message"].as_str());
    let back = messages.filter(|line| line.contains("is back"));
    let calls = back.filter_map(|line| line.split(' ').rev().nth(2)?.parse::<u64>().ok());
    assert!(calls.sum::<u64>() >= 1, "{log}");
}

#[tokio::test]
async fn without_a_sidecar_each_rule_gives_its_own_answer_and_afterwards_limits_apply() {
    let mut chain = chain().await;
    limits_hold(&chain, "before").await;
    chain.sidecar.kill();
    no_verdict_is_available(&chain, "during").await;
    chain.sidecar.restart().await;
    limits_hold(&chain, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_answer_while_redis_hangs() {
    let redis = Redis::start().await;
    // A question to the store would wait this long.
    let policy = Policy::on(redis.url()).timeout("5s");
    let policy = policy.window("per-key", "sliding_log", 2, "1h").text();
    let sidecar = Sidecar::alone(&policy).await;
    let ready = sidecar.admin("/readyz");
    sidecar.reports("the store answers").await;
    redis.pause();
    // Of five, one at least that this machine does not delay.
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        assert_eq!(get(&ready).await.0, 200);
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_secs(4), "{fastest:?}");
    eventually("it is reported", async || {
        let (status, body) = get(&ready).await;
        assert_eq!(status, 200, "{body}");
        body.contains("the store has not answered for")
    })
    .await;
    redis.resume();
    sidecar.reports("the store answers").await;
}
