//! One limit switched off for everybody: by an override for all keys, and by `enforce: false`.

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::super::support::{Policy, decide, decided, left, peek, take};
use super::fleet::Fleet;
use super::{admitted, change, list, remove, rfc3339_in, set, shows};

fn both(key: &str) -> Value {
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
    let for_all = async |terms: Value, status: u16| {
        let mut all = json!({ "key": null, "all_keys": true });
        let fields = all.as_object_mut().unwrap();
        fields.extend(terms.as_object().unwrap().clone());
        change(here, Method::PUT, ("per-key", ""), &all, status).await
    };
    let off = json!({ "unlimited": true, "until": rfc3339_in(6) });
    let now = json!({ "all_keys": true, "state": "in_force", "key": null, "subject": null });
    shows(&for_all(off, 200).await["override"], &now);
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
        assert_eq!(take(sidecar, "per-key", "b").await["outcome"], "denied");
        let unlimited = "sluicegate_overrides{allowance=\"unlimited\"}";
        assert_eq!(sidecar.metric(unlimited).await, 1.0);
    }
    // The bucket of the other limit is taken from, and denies.
    for _ in 0..5 {
        let expected = json!({ "outcome": "admitted", "limit": "rate" });
        shows(&decide(here, both("k")).await, &expected);
    }
    let expected = json!({ "outcome": "denied", "limit": "rate" });
    shows(&decide(here, both("k")).await, &expected);
    assert_eq!(left(here, "rate", "anybody").await, 5);
    let log = here.log();
    assert!(log.contains(r#"subject="all keys""#), "{log}");
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
        json!({ "blocked": true }),
        json!({ "quota": 7 }),
        json!({ "key": "k", "unlimited": true }),
    ] {
        let answer = for_all(wrong, 400).await;
        shows(&answer, &json!({ "code": "malformed_entry" }));
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
    let expected = json!({ "limit": "rate", "remaining": 1 });
    shows(&decide(&sidecar, both("k")).await, &expected);
    let off =
        json!({ "all_keys": true, "source": "policy", "unlimited": true, "state": "in_force" });
    shows(&list(&sidecar).await[0], &off);
    reload(", enforce: true", "denied").await;
    assert!(list(&sidecar).await.is_empty());
    assert_eq!(left(&sidecar, "rate", "k").await, 1);
}
