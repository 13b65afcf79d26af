//! Behaviour while a part is down, and when it is back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::{get, post};
use sluicegate_tests::process::{eventually, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Chain, policy};

/// Longer than a stall of a test machine, shorter than a client's timeout.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The rules `/allow` and `/deny` are named after their `when_unavailable`; both have the limit `per-key`.
fn plugin() -> Value {
    let rule = |when: &str| {
        json!({
            "name": when, "match": { "path_prefix": format!("/{when}") },
            "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }, { "path": true }] }],
            "when_unavailable": when,
        })
    };
    json!({ "sidecar": { "cluster": "sluicegate", "timeout": "1s" }, "rules": [rule("allow"), rule("deny")] })
}

async fn chain() -> Chain {
    let patient = |url: &str| policy(url, "sliding_log", 3, "1h").replace("2s", "500ms");
    Chain::start(patient, plugin()).await
}

/// Asserts that both rules give their own answer, within the deadline.
async fn no_verdict_is_available(chain: &Chain, key: &str) {
    for (path, status) in [("/allow", 200), ("/deny", 503)] {
        for _ in 0..5 {
            let started = Instant::now();
            let answer = chain.get(path, key).await;
            // The deadline under test, and an allowance for a machine that stalls.
            assert!(
                started.elapsed() < TIMEOUT + Duration::from_secs(1),
                "{path} took {:?}",
                started.elapsed()
            );
            assert_eq!(answer.status(), status, "{path}");
            if status == 503 {
                assert!(answer.headers().get("retry-after").is_none());
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
    eventually("the sidecar knows that Redis is down", async || {
        chain.sidecar.metric("sluicegate_store_up").await == 0.0
    })
    .await;
}

#[tokio::test]
async fn without_redis_a_share_of_each_limit_applies_and_afterwards_the_whole_limit() {
    let mut chain = chain().await;
    limits_hold(&chain, "before").await;
    chain.redis.kill();
    redis_is_down(&chain).await;
    // This sidecar's share is the whole limit, because there is no other sidecar.
    limits_hold(&chain, "during").await;
    let failed = ["connection", "timeout"];
    let mut errors = 0.0;
    for kind in failed {
        errors += chain
            .sidecar
            .metric(&format!("sluicegate_store_errors_total{{kind=\"{kind}\"}}"))
            .await;
    }
    assert!(errors >= 1.0, "{errors}");
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
    let ready = format!("http://127.0.0.1:{}/readyz", chain.sidecar.admin_port);
    assert_eq!(get(&ready).await.0, 200);
    chain.redis.restart().await;
    limits_hold(&chain, "after").await;

    let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
    let (start, rest) = page.split_once("\n## ").unwrap();
    assert!(start.contains("While Redis is away, do not restart"));
    let (_, section) = rest.split_once("\n## SluicegateStoreFailing\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    assert!(section.contains("Do not restart or scale sidecars"));
}

#[tokio::test]
async fn a_paused_redis_counts_as_down() {
    let chain = chain().await;
    limits_hold(&chain, "before").await;
    chain.redis.pause();
    redis_is_down(&chain).await;
    limits_hold(&chain, "during").await;
    chain.redis.resume();
    limits_hold(&chain, "after").await;
}

#[tokio::test]
async fn s19_an_outage_is_logged_once_in_ten_seconds_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut redis = Redis::start().await;
    let policy = policy(&redis.url(), "sliding_log", 3, "1h");
    let json = ["--log-format", "json"];
    let sidecar = Sidecar::with(&policy)
        .arguments(&json)
        .start(folder.path())
        .await;
    redis.kill();
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    for n in 0..100 {
        let checks = json!([{ "limit": "per-key", "key": n.to_string() }]);
        let body = json!({ "decisions": [{ "checks": checks }] });
        post(&url, body.to_string()).await;
    }
    redis.restart().await;
    eventually("the store is back", async || {
        sidecar.log().contains("is back")
    })
    .await;
    let log = sidecar.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let failed: Vec<_> = lines
        .iter()
        .filter(|line| line["level"] == "WARN")
        .collect();
    // One of each kind in ten seconds; slow machines take longer.
    assert!((1..=12).contains(&failed.len()), "{failed:#?}");
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

#[tokio::test]
async fn without_either_nothing_hangs_and_afterwards_limits_apply() {
    let mut chain = chain().await;
    chain.redis.kill();
    chain.sidecar.kill();
    no_verdict_is_available(&chain, "during").await;
    // The sidecar restarts first, and serves before its Redis is back.
    chain.sidecar.restart().await;
    no_verdict_is_available(&chain, "still").await;
    chain.redis.restart().await;
    limits_hold(&chain, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s10_probes_answer_while_redis_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    // A question to the store would wait this long.
    let policy = policy(&redis.url(), "sliding_log", 2, "1h").replace("2s", "5s");
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    eventually("the store answers", async || {
        get(&ready).await.1.contains("the store answers")
    })
    .await;
    redis.pause();
    let fastest = async |url: &str| {
        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let began = Instant::now();
            assert_eq!(get(url).await.0, 200);
            fastest = fastest.min(began.elapsed());
        }
        fastest
    };
    let took = fastest(&ready).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    eventually("it is reported", async || {
        let (status, body) = get(&ready).await;
        assert_eq!(status, 200, "{body}");
        body.contains("the store has not answered for")
    })
    .await;
    redis.resume();
    eventually("it is reported", async || {
        get(&ready).await.1.contains("the store answers")
    })
    .await;
}
