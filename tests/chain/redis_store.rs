//! The sidecar and its script on a real Redis.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sluicegate_tests::client::post;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::policy;

async fn outcome(sidecar: &Sidecar) -> String {
    let body = json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": "k" }] }] });
    let (_, answer) = post(
        &format!("http://127.0.0.1:{}/v1/decide", sidecar.port),
        body.to_string(),
    )
    .await;
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["verdicts"][0]["outcome"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_script_that_redis_has_lost_is_sent_again_unnoticed_by_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let sidecar =
        Sidecar::start(&policy(&redis.url(), "sliding_log", 3, "1h"), folder.path()).await;
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(outcome(&sidecar).await);
        let _: () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async(&mut redis.connection().await)
            .await
            .unwrap();
    }
    assert_eq!(outcomes, ["admitted", "admitted", "admitted", "denied"]);
    let metrics = sidecar.metrics().await;
    let errors = metrics
        .lines()
        .filter(|line| line.starts_with("sluicegate_store_errors_total{"));
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty(), "{metrics}");
    assert!(errors.iter().all(|line| line.ends_with(" 0")), "{errors:?}");
}

#[tokio::test]
async fn every_key_has_a_ttl_and_redis_is_empty_after_the_traffic() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    for algorithm in ["sliding_log", "fixed_window"] {
        let sidecar =
            Sidecar::start(&policy(&redis.url(), algorithm, 3, "1s"), folder.path()).await;
        assert_eq!(outcome(&sidecar).await, "admitted");
        let mut connection = redis.connection().await;
        for key in redis.all_keys().await {
            let ttl: i64 = redis::cmd("PTTL")
                .arg(&key)
                .query_async(&mut connection)
                .await
                .unwrap();
            assert!(ttl > 0, "{key}: {ttl}");
        }
        eventually("Redis is empty", async || redis.keys().await.is_empty()).await;
    }
    // Sidecars that are killed are forgotten too.
    eventually("nothing at all is left", async || {
        redis.all_keys().await.is_empty()
    })
    .await;
}

/// How many scripts a Redis has run.
async fn script_calls(connection: &mut redis::aio::MultiplexedConnection) -> u64 {
    let mut info = redis::cmd("INFO");
    let info: String = info
        .arg("commandstats")
        .query_async(connection)
        .await
        .unwrap();
    let of = |command: &str| {
        let line = info.split_once(&format!("cmdstat_{command}:calls="));
        line.map_or(0, |(_, rest)| {
            rest[..rest.find(',').unwrap()].parse::<u64>().unwrap()
        })
    };
    of("evalsha") + of("eval")
}

/// How many decisions had each outcome.
type Outcomes = Arc<Mutex<BTreeMap<String, u64>>>;

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_mid_batch_never_admits_twice() {
    const LIMIT: u64 = 400;
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    // Otherwise a share of the limit would decide when no connection lasts.
    let policy = policy(&redis.url(), "sliding_log", LIMIT, "1h")
        .replace("algorithm:", "when_store_is_down: deny\n    algorithm:");
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let batch =
        json!({ "decisions": vec![json!({ "checks": [{ "limit": "per-key", "key": "k" }] }); 16] })
            .to_string();
    let counts = Outcomes::default();
    let (enough, is_enough) = tokio::sync::watch::channel(false);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (url, batch, counts, is_enough) = (
            url.clone(),
            batch.clone(),
            Arc::clone(&counts),
            is_enough.clone(),
        );
        tasks.push(tokio::spawn(async move {
            while !*is_enough.borrow() {
                let (_, answer) = post(&url, batch.clone()).await;
                let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
                let verdicts = answer["verdicts"].as_array().unwrap();
                assert_eq!(verdicts.len(), 16, "{answer}");
                for verdict in verdicts {
                    let outcome = verdict["outcome"].as_str().unwrap().to_owned();
                    *counts.lock().unwrap().entry(outcome).or_default() += 1;
                }
            }
        }));
    }
    let of = |outcome: &str| counts.lock().unwrap().get(outcome).copied().unwrap_or(0);
    let mut killer = redis.connection().await;
    let mut cuts = 0;
    // Until the limit is used up: then every unit was admitted or lost in a call that was cut.
    while cuts < 10 || of("denied") == 0 || of("unavailable") == 0 {
        // A few calls between two cuts, however slow the machine: then the next one is probably under way.
        let before = script_calls(&mut killer).await;
        eventually("the sidecar calls Redis", async || {
            script_calls(&mut killer.clone()).await >= before + 2
        })
        .await;
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal");
        let _: i64 = kill
            .arg("SKIPME")
            .arg("yes")
            .query_async(&mut killer)
            .await
            .unwrap();
        cuts += 1;
    }
    enough.send(true).unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let known = ["admitted", "denied", "unavailable"];
    let outcomes: Vec<_> = counts.lock().unwrap().keys().cloned().collect();
    assert_eq!(outcomes, known, "{counts:?}");
    // Units taken by a call that was cut are lost; no unit is admitted twice.
    let admitted = of("admitted");
    assert!(admitted > 0 && admitted <= LIMIT, "{counts:?}");
}

/// The number in a column of the line that begins with `name`.
fn column(text: &str, name: &str, column: usize) -> f64 {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(name));
    let cell = line.and_then(|line| line.split_whitespace().nth(column));
    cell.unwrap_or_else(|| panic!("no {name} in {text}"))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn the_calculator_predicts_what_redis_uses() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    for (algorithm, quota) in [
        ("sliding_log", 500),
        ("sliding_window", 500),
        ("fixed_window", 500),
        ("token_bucket", 500),
    ] {
        let _: () = redis::cmd("FLUSHALL")
            .query_async(&mut redis.connection().await)
            .await
            .unwrap();
        let sidecar =
            Sidecar::start(&policy(&redis.url(), algorithm, quota, "1h"), folder.path()).await;
        let key = "k".repeat(43);
        for _ in 0..quota {
            let body = json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": key }] }] });
            post(
                &format!("http://127.0.0.1:{}/v1/decide", sidecar.port),
                body.to_string(),
            )
            .await;
        }
        let mut used = 0.0;
        for key in redis.keys().await {
            let mut usage = redis::cmd("MEMORY");
            usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
            let bytes: f64 = usage
                .query_async(&mut redis.connection().await)
                .await
                .unwrap();
            used += bytes;
        }
        let mut estimate = std::process::Command::new(sluicegate_tests::sidecar::binary());
        // A sliding window holds one entry for each of its steps; all 500 requests fall into one or two.
        let share = if algorithm == "sliding_window" {
            "2"
        } else {
            "100"
        };
        estimate
            .args(["estimate", "--keys", "1000", "--used", share, "--policy"])
            .arg(&sidecar.policy);
        let output = estimate.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let estimated = column(&text, "per-key", 1);
        assert!(
            (estimated / used - 1.0).abs() < 0.25,
            "{algorithm}: {used} bytes used, {estimated} estimated\n{text}"
        );
        assert_eq!(column(&text, "per-key", 2), estimated * 1_000.0);
    }
}

/// The verdicts of decisions for these keys of `per-key`, in one request.
async fn verdicts(sidecar: &Sidecar, keys: &[&str]) -> Vec<serde_json::Value> {
    let decision = |key: &&str| json!({ "checks": [{ "limit": "per-key", "key": key }] });
    let decisions: Vec<_> = keys.iter().map(decision).collect();
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let (_, answer) = post(&url, json!({ "decisions": decisions }).to_string()).await;
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["verdicts"].as_array().unwrap().clone()
}

/// Their outcomes.
async fn together(sidecar: &Sidecar, keys: &[&str]) -> Vec<String> {
    let verdicts = verdicts(sidecar, keys).await;
    let outcomes = verdicts.iter().map(|verdict| verdict["outcome"].as_str());
    outcomes
        .map(|outcome| outcome.unwrap().to_owned())
        .collect()
}

/// Makes the only key of a Redis unreadable for the script.
async fn break_the_key(redis: &Redis) {
    let key = redis.keys().await.remove(0);
    let () = redis::cmd("SET")
        .arg(&key)
        .arg("of another program")
        .query_async(&mut redis.connection().await)
        .await
        .unwrap();
}

#[tokio::test]
async fn s16_a_key_that_something_else_wrote_makes_only_its_own_decisions_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let sidecar =
        Sidecar::start(&policy(&redis.url(), "sliding_log", 9, "1h"), folder.path()).await;
    assert_eq!(together(&sidecar, &["bad"]).await, ["admitted"]);
    break_the_key(&redis).await;
    let outcomes = together(&sidecar, &["good", "bad", "other"]).await;
    assert_eq!(outcomes, ["admitted", "unavailable", "admitted"]);
    let metrics = sidecar.metrics().await;
    let counted = r#"sluicegate_store_errors_total{kind="state"} 1"#;
    assert!(metrics.lines().any(|line| line == counted), "{metrics}");
}

/// `when_store_is_down` decided although the store was up: with `allow`, whoever had such a key was not limited any more,
/// even under a rule with `when_unavailable: deny`.
#[tokio::test]
async fn s16_a_key_that_something_else_wrote_is_left_to_the_rule_while_redis_is_up() {
    for answer in ["allow", "deny"] {
        let folder = tempfile::tempdir().unwrap();
        let redis = Redis::start().await;
        let down = format!("when_store_is_down: {answer}\n    algorithm:");
        let policy = policy(&redis.url(), "sliding_log", 9, "1h").replace("algorithm:", &down);
        let sidecar = Sidecar::start(&policy, folder.path()).await;
        assert_eq!(together(&sidecar, &["bad"]).await, ["admitted"]);
        break_the_key(&redis).await;
        let expected = json!([{ "outcome": "unavailable" }]);
        assert_eq!(json!(verdicts(&sidecar, &["bad"]).await), expected);
    }
}

#[tokio::test]
async fn s22_the_largest_request_is_split_into_many_calls() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let sidecar = Sidecar::start(
        &policy(&redis.url(), "fixed_window", 9, "1h"),
        folder.path(),
    )
    .await;
    let mut connection = redis.connection().await;
    let () = redis::cmd("CONFIG")
        .arg(&[
            "SET",
            "slowlog-log-slower-than",
            "0",
            "slowlog-max-len",
            "1000",
        ])
        .query_async(&mut connection)
        .await
        .unwrap();
    let check = |key: String| json!({ "limit": "per-key", "key": key });
    let decision = |n: usize| {
        let checks: Vec<_> = (0..32).map(|key| check(format!("{n}-{key}"))).collect();
        json!({ "checks": checks })
    };
    let decisions: Vec<_> = (0..256).map(decision).collect();
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let (status, answer) = post(&url, json!({ "decisions": decisions }).to_string()).await;
    assert_eq!(status, 200);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    // 8,192 visits were asked for, of which 4,096 may be.
    let codes = answer["verdicts"].as_array().unwrap().iter();
    let refused = codes.filter(|verdict| verdict["code"] == "request_too_large");
    assert_eq!(refused.count(), 128);
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let log: Vec<Entry> = redis::cmd("SLOWLOG")
        .arg(&["GET", "-1"])
        .query_async(&mut connection)
        .await
        .unwrap();
    let calls = log.iter().map(|entry| &entry.3);
    let calls = calls.filter(|command| command[0].starts_with(b"EVAL"));
    let number = |command: &Vec<Vec<u8>>| str::from_utf8(&command[2]).unwrap().parse().unwrap();
    let keys: Vec<usize> = calls.map(number).collect();
    assert!(!keys.is_empty(), "{log:?}");
    assert!(keys.iter().all(|keys| *keys <= 512), "{keys:?}");
}
