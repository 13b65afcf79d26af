//! One limit switched off for everybody: by an override for all keys, and by `enforce: false`.

use reqwest::Method;
use serde_json::json;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::super::support::{Policy, decide, decided, left, peek, take};
use super::fleet::Fleet;
use super::{admitted, change, list, remove, rfc3339_in, set};

fn both(key: &str) -> serde_json::Value {
    json!({ "checks": [{ "limit": "per-key", "key": key }, { "limit": "rate", "key": key }] })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_switched_off_takes_nothing_and_the_others_do_as_usual() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    assert_eq!(admitted(here, "per-key", "k", 6).await, 5);
    assert_eq!(take(there, "per-key", "k").await["outcome"], "denied");
    set(here, "per-key", "b", json!({ "blocked": true })).await;
    let body =
        json!({ "limit": "per-key", "all_keys": true, "unlimited": true, "until": rfc3339_in(6) });
    let (status, answer) = change(here, Method::PUT, &body).await;
    let now = &answer["override"];
    assert_eq!(
        (status, &now["all_keys"], &now["state"]),
        (200, &json!(true), &json!("in_force"))
    );
    assert!(
        now.get("key").is_none() && now.get("subject").is_none(),
        "{answer}"
    );
    eventually("the other sidecar knows", async || {
        peek(there, "per-key", "k").await["outcome"] == "admitted"
    })
    .await;
    for sidecar in [here, there] {
        let before = decided(sidecar, "per-key", "override", "admitted").await;
        assert_eq!(admitted(sidecar, "per-key", "k", 10).await, 10);
        assert_eq!(admitted(sidecar, "per-key", "anybody", 10).await, 10);
        let after = decided(sidecar, "per-key", "override", "admitted").await;
        assert_eq!(after - before, 20);
        assert_eq!(
            take(sidecar, "per-key", "b").await["outcome"],
            "denied",
            "blocked"
        );
        let unlimited = "sluicegate_overrides{allowance=\"unlimited\"}";
        assert_eq!(sidecar.metric(unlimited).await, 1.0);
    }
    // The bucket of the other limit is taken from, and denies.
    for _ in 0..5 {
        let verdict = decide(here, both("k")).await;
        assert_eq!(
            (&verdict["outcome"], &verdict["limit"]),
            (&json!("admitted"), &json!("rate"))
        );
    }
    let verdict = decide(here, both("k")).await;
    assert_eq!(
        (&verdict["outcome"], &verdict["limit"]),
        (&json!("denied"), &json!("rate"))
    );
    assert_eq!(left(here, "rate", "anybody").await, 5);
    let log = here.log();
    assert!(log.contains("subject=all keys"), "{log}");
    // It ends by itself, and nothing was taken meanwhile.
    eventually("it has ended", async || {
        peek(there, "per-key", "k").await["outcome"] == "denied"
    })
    .await;
    assert_eq!(left(here, "per-key", "anybody").await, 5);
    let of_all = list(here)
        .await
        .into_iter()
        .find(|one| one["all_keys"] == true);
    assert_eq!(of_all.unwrap()["state"], "ended");
    for wrong in [
        json!({ "limit": "per-key", "all_keys": true, "blocked": true }),
        json!({ "limit": "per-key", "all_keys": true, "quota": 7 }),
        json!({ "limit": "per-key", "all_keys": true, "key": "k", "unlimited": true }),
    ] {
        let (status, answer) = change(here, Method::PUT, &wrong).await;
        assert_eq!(
            (status, &answer["code"]),
            (400, &json!("malformed_entry")),
            "{answer}"
        );
    }
    remove(here, "per-key", "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_with_enforce_false_is_off_from_one_reload_to_the_next() {
    let windows = "algorithm: sliding_log, windows: [{ quota: 2, per: 1h }]";
    let policy = |enforce: &str| {
        let limit = format!("{windows}{enforce}");
        Policy::on("memory")
            .limit("per-key", &limit)
            .limit("rate", windows)
            .text()
    };
    let sidecar = Sidecar::alone(&policy("")).await;
    assert_eq!(admitted(&sidecar, "per-key", "k", 3).await, 2);
    let reload = async |enforce: &str, outcome: &str| {
        std::fs::write(&sidecar.policy, policy(enforce)).unwrap();
        eventually(&format!("{enforce:?} is in force"), async || {
            peek(&sidecar, "per-key", "k").await["outcome"] == outcome
        })
        .await;
    };
    reload(", enforce: false", "admitted").await;
    assert_eq!(admitted(&sidecar, "per-key", "k", 9).await, 9);
    let verdict = decide(&sidecar, both("k")).await;
    assert_eq!(
        (&verdict["limit"], &verdict["remaining"]),
        (&json!("rate"), &json!(1))
    );
    let listed = list(&sidecar).await;
    let one = &listed[0];
    assert_eq!(
        (
            &one["all_keys"],
            &one["source"],
            &one["unlimited"],
            &one["state"]
        ),
        (
            &json!(true),
            &json!("policy"),
            &json!(true),
            &json!("in_force")
        )
    );
    reload(", enforce: true", "denied").await;
    assert!(list(&sidecar).await.is_empty());
    assert_eq!(left(&sidecar, "rate", "k").await, 1);
}
