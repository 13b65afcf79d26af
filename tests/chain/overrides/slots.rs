//! Overrides of what may be in use at once.

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{self, Sidecar};

use super::super::support::{Policy, ask, take};
use super::operator::command;
use super::{change, remove, rfc3339_in, set, shows};

async fn settle(sidecar: &Sidecar, receipt: &Value, field: &str) -> Value {
    let entry = json!({ "limit": "streams", "key": "acme", "receipt": receipt, field: 1 });
    let mut answer = ask(sidecar.port, "/v1/settle", json!({ "settles": [entry] })).await;
    answer["outcomes"][0].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_raised_blocked_and_lifted_like_a_quota_and_streams_live_on() {
    let redis = Redis::start().await;
    let fields = "algorithm: concurrency, windows: [{ quota: 1, per: 1m }]";
    let policy = Policy::on(redis.url()).limit("streams", fields).text();
    let sidecar = Sidecar::alone(&policy).await;
    let asked = async || take(&sidecar, "streams", "acme").await;
    let first = asked().await["receipt"][0].take();
    let denied = json!({ "outcome": "denied", "at_once": true, "quota": 1, "reset_ms": 0 });
    shows(&asked().await, &denied);

    // Raised, in the command's words; what has a time is not what a limit of slots has.
    let of_acme = "--limit streams --key acme";
    let (status, told) = command(&sidecar, &format!("set {of_acme} --quota 2"));
    assert!(
        status == Some(0) && told.contains(": 2 at once until"),
        "{told}"
    );
    let (_, told) = command(&sidecar, "list");
    assert!(told.contains("  2 at once  "), "{told}");
    let refused = json!({ "windows": [{ "quota": 3, "per": "1m" }] });
    let refused = change(&sidecar, Method::PUT, ("streams", "acme"), &refused, 400).await;
    let refused = refused.to_string();
    assert!(
        refused.contains("in use at once") && refused.contains("`quota` alone"),
        "{refused}"
    );
    let second = asked().await["receipt"][0].take();
    shows(&asked().await, &json!({ "outcome": "denied", "quota": 2 }));
    let run = |words: &str| {
        let words = format!("{words} {of_acme} --sidecar {}", sidecar.url(""));
        sidecar::command(&words).1
    };
    let told = run("peek");
    let expected = "limit `streams`: 0 of 2 at once left\n1 units available in about 1s\n";
    assert_eq!(told, expected);
    let left = serde_json::from_str(&run("peek --output json")).unwrap();
    shows(
        &left,
        &json!({ "at_once": true, "reset_ms": null, "next_unit_ms": null }),
    );

    // Blocked: the end of the block is a true time. What runs goes on, and gives its slots back.
    let blocked = json!({ "blocked": true, "until": rfc3339_in(600) });
    set(&sidecar, "streams", "acme", blocked).await;
    let again = asked().await;
    shows(&again, &json!({ "outcome": "denied" }));
    assert!(again["retry_after_ms"].as_u64() > Some(500_000), "{again}");
    assert_eq!(
        settle(&sidecar, &first, "within_ms").await["outcome"],
        "renewed"
    );
    let told = settle(&sidecar, &second, "units").await;
    assert_eq!(told["units"], 1, "{told}");

    // Lifted: nothing is taken, so there is nothing to give back.
    set(&sidecar, "streams", "acme", json!({ "unlimited": true })).await;
    for _ in 0..3 {
        shows(
            &asked().await,
            &json!({ "outcome": "admitted", "receipt": null }),
        );
    }
    remove(&sidecar, "streams", "acme").await;
    shows(&asked().await, &denied);
    assert_eq!(settle(&sidecar, &first, "units").await["units"], 1);
    shows(&asked().await, &json!({ "outcome": "admitted" }));
}
