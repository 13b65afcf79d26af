//! The sidecar and its script on a real Redis.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, check, decide_all, policy, take};

async fn outcome(sidecar: &Sidecar) -> Value {
    take(sidecar, "per-key", "k").await["outcome"].take()
}

#[tokio::test]
async fn a_script_that_redis_has_lost_is_sent_again_unnoticed_by_the_caller() {
    let redis = Redis::start().await;
    let sidecar = Sidecar::alone(&policy(&redis.url(), "sliding_log", 3, "1h")).await;
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(outcome(&sidecar).await);
        let () = redis.command("SCRIPT FLUSH").await;
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
    let redis = Redis::start().await;
    for algorithm in ["sliding_log", "fixed_window"] {
        let sidecar = Sidecar::alone(&policy(&redis.url(), algorithm, 3, "2s")).await;
        assert_eq!(outcome(&sidecar).await, "admitted");
        for key in redis.all_keys().await {
            let ttl: i64 = redis.command(&format!("PTTL {key}")).await;
            // -2: it has ended meanwhile.
            assert!(ttl > 0 || ttl == -2, "{key}: {ttl}");
        }
        eventually("Redis is empty", async || redis.keys().await.is_empty()).await;
    }
    // Sidecars that are killed are forgotten too; what limits, prefixes and marks there were, in some minutes.
    let of_fleets = |key: &String| {
        let parts = [":limits", ":prefixes", "{mark-"];
        parts.iter().any(|part| key.contains(part))
    };
    eventually("nothing else is left", async || {
        redis.all_keys().await.iter().all(of_fleets)
    })
    .await;
}

/// A policy whose limit has this `when_store_is_down`.
fn policy_when_down(redis: &Redis, answer: &str, quota: u64) -> String {
    let window = format!("algorithm: sliding_log, windows: [{{ quota: {quota}, per: 1h }}]");
    let fields = format!("{window}, when_store_is_down: {answer}");
    Policy::on(redis.url()).limit("per-key", &fields).text()
}

/// How many decisions had each outcome.
type Outcomes = Arc<Mutex<BTreeMap<String, u64>>>;

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_in_mid_batch_never_admits_twice() {
    const LIMIT: u64 = 400;
    let redis = Redis::start().await;
    // Otherwise a share of the limit would decide when no connection lasts.
    let text = policy_when_down(&redis, "deny", LIMIT);
    let sidecar = Sidecar::alone(&text).await;
    let sidecar = Arc::new(sidecar);
    let batch = vec![json!({ "checks": [check("per-key", "k")] }); 16];
    let counts = Outcomes::default();
    let (enough, is_enough) = tokio::sync::watch::channel(false);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (sidecar, counts) = (Arc::clone(&sidecar), Arc::clone(&counts));
        let (batch, is_enough) = (batch.clone(), is_enough.clone());
        tasks.push(tokio::spawn(async move {
            while !*is_enough.borrow() {
                let verdicts = decide_all(&sidecar, batch.clone()).await;
                assert_eq!(verdicts.len(), 16, "{verdicts:?}");
                for verdict in verdicts {
                    let outcome = verdict["outcome"].as_str().unwrap().to_owned();
                    *counts.lock().unwrap().entry(outcome).or_default() += 1;
                }
            }
        }));
    }
    let of = |outcome: &str| counts.lock().unwrap().get(outcome).copied().unwrap_or(0);
    let mut cuts = 0;
    // Until the limit is used up: then every unit was admitted or lost in a call that was cut.
    while cuts < 10 || of("denied") == 0 || of("unavailable") == 0 {
        // A few calls between two cuts, however slow the machine: then the next one is probably under way.
        let before = redis.script_calls().await;
        eventually("the sidecar calls Redis", async || {
            redis.script_calls().await >= before + 2
        })
        .await;
        let kill = "CLIENT KILL TYPE normal SKIPME yes";
        let _: i64 = redis.command(kill).await;
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

/// The outcomes of decisions for these keys, in one request.
async fn together(sidecar: &Sidecar, keys: &[&str]) -> Vec<Value> {
    let decisions = keys
        .iter()
        .map(|key| json!({ "checks": [check("per-key", key)] }));
    let verdicts = decide_all(sidecar, decisions.collect::<Vec<_>>()).await;
    verdicts
        .iter()
        .map(|verdict| verdict["outcome"].clone())
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
async fn a_key_that_something_else_wrote_makes_only_its_own_decisions_unavailable() {
    let redis = Redis::start().await;
    let sidecar = Sidecar::alone(&policy(&redis.url(), "sliding_log", 9, "1h")).await;
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
async fn a_key_that_something_else_wrote_is_left_to_the_rule_while_redis_is_up() {
    for answer in ["allow", "deny"] {
        let redis = Redis::start().await;
        let text = policy_when_down(&redis, answer, 9);
        let sidecar = Sidecar::alone(&text).await;
        assert_eq!(together(&sidecar, &["bad"]).await, ["admitted"]);
        break_the_key(&redis).await;
        // It is not the limit that answers.
        let expected = json!({ "outcome": "unavailable" });
        assert_eq!(take(&sidecar, "per-key", "bad").await, expected);
    }
}

#[tokio::test]
async fn the_largest_request_is_split_into_many_calls() {
    let redis = Redis::start().await;
    let sidecar = Sidecar::alone(&policy(&redis.url(), "fixed_window", 9, "1h")).await;
    let slowlog = "CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 1000";
    let () = redis.command(slowlog).await;
    let decision = |n: usize| {
        let checks = (0..32).map(|key| check("per-key", &format!("{n}-{key}")));
        json!({ "checks": checks.collect::<Vec<_>>() })
    };
    let decisions: Vec<_> = (0..256).map(decision).collect();
    let verdicts = decide_all(&sidecar, decisions).await;
    // 8,192 visits were asked for, of which 4,096 may be.
    let refused = verdicts
        .iter()
        .filter(|verdict| verdict["code"] == "request_too_large");
    assert_eq!(refused.count(), 128);
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let log: Vec<Entry> = redis.command("SLOWLOG GET -1").await;
    let calls = log.iter().map(|entry| &entry.3);
    let calls = calls.filter(|command| command[0].starts_with(b"EVAL"));
    let number = |command: &Vec<Vec<u8>>| str::from_utf8(&command[2]).unwrap().parse().unwrap();
    let keys: Vec<usize> = calls.map(number).collect();
    assert!(!keys.is_empty(), "{log:?}");
    assert!(keys.iter().all(|keys| *keys <= 512), "{keys:?}");
}
