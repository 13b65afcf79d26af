//! Slots as operators see them: whose they are, since when, and what became of them.

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, ask, check, take};

/// What `top` and `explain` show of the key `mallory`: printf %s mallory | sha256sum | cut -c1-20
const MALLORY: &str = "c0a497761b175379ed63";
const VM: &str = "5f0c6b1a9d3e4f2c8b7a6d5e4f3c2b1a";

/// A sidecar on a Redis with the limit `streams` of so many slots, and these further fields.
async fn sidecar(slots: u64, more: &str) -> (Sidecar, Redis) {
    let redis = Redis::start().await;
    let fields = format!("algorithm: concurrency, windows: [{{ quota: {slots}, per: 6s }}]{more}");
    let policy = Policy::on(redis.url()).limit("streams", &fields);
    let policy = policy.window("rate", "sliding_log", 2, "1h").text();
    (Sidecar::alone(&policy).await, redis)
}

async fn holds(sidecar: &Sidecar, query: &str) -> Value {
    let (status, text) = get(&sidecar.admin(&format!("/v1/holds{query}"))).await;
    assert_eq!(status, 200, "{text}");
    assert!(!text.contains("mallory"), "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Frees slots of the key `mallory`, or renews them; what the sidecar says.
async fn settle(sidecar: &Sidecar, receipt: &Value, field: &str) -> Value {
    let entry = json!({ "limit": "streams", "key": "mallory", "receipt": receipt, field: 1 });
    let mut answer = ask(sidecar.port, "/v1/settle", json!({ "settles": [entry] })).await;
    answer["outcomes"][0].take()
}

async fn slots(sidecar: &Sidecar, event: &str) -> f64 {
    let name = format!("sluicegate_slots_total{{event=\"{event}\",limit=\"streams\"}}");
    sidecar.metric(&name).await
}

const IN_USE: &str = "sluicegate_slots_in_use{limit=\"streams\"}";

#[tokio::test(flavor = "multi_thread")]
async fn whose_slots_are_in_use_is_told_by_limit_and_subject_until_they_are_freed() {
    let (sidecar, _redis) = sidecar(4, "").await;
    assert_eq!(sidecar.metric(IN_USE).await, 0.0);
    // Both checks have one receipt; the rate has none.
    let checks = json!([
        check("streams", "mallory"),
        check("rate", "mallory"),
        check("streams", "mallory")
    ]);
    let decision = json!({ "decisions": [{ "checks": checks }] }).to_string();
    let call = client()
        .post(sidecar.url("/v1/decide"))
        .header("sluicegate-vm", VM);
    let answer = call.body(decision).send().await.unwrap();
    let mut answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let receipt = answer["verdicts"][0]["receipt"][0].take();
    take(&sidecar, "streams", "other").await;

    let all = holds(&sidecar, "").await;
    let [first, other] = &all["holds"].as_array().unwrap()[..] else {
        panic!("{all}");
    };
    let number = all["sidecar"].as_str().unwrap();
    assert!(
        number.ends_with(first["granted_by"].as_str().unwrap()),
        "{all}"
    );
    for (field, value) in [
        ("limit", json!("streams")),
        ("subject", json!(MALLORY)),
        ("slots", json!(2)),
        ("vm", json!(VM)),
        ("outlived", Value::Null),
    ] {
        assert_eq!(first[field], value, "{field} of {all}");
    }
    assert_eq!((&other["slots"], &other["vm"]), (&json!(1), &Value::Null));
    for (query, expected) in [
        ("?limit=streams", 2),
        ("?limit=rate", 0),
        (&*format!("?limit=streams&subject={MALLORY}"), 1),
    ] {
        let found = holds(&sidecar, query).await;
        assert_eq!(
            found["holds"].as_array().unwrap().len(),
            expected,
            "{query}"
        );
    }
    for (query, expected, code, told) in [
        ("who=me", 400, "bad_query", "`limit=NAME`"),
        (
            "limit=streems",
            404,
            "unknown_limit",
            "no limit `streems`; did you mean `streams`?",
        ),
    ] {
        let (status, refused) = get(&sidecar.admin(&format!("/v1/holds?{query}"))).await;
        assert_eq!(status, expected, "{refused}");
        assert!(
            refused.contains(code) && refused.contains(told),
            "{refused}"
        );
    }
    assert_eq!(sidecar.metric(IN_USE).await, 3.0);

    assert_eq!(settle(&sidecar, &receipt, "units").await["units"], 2);
    let left = holds(&sidecar, "").await;
    assert_eq!(left["holds"].as_array().unwrap().len(), 1, "{left}");
    let seconds = "sluicegate_slot_holding_seconds_count{limit=\"streams\"}";
    assert_eq!(sidecar.metric(seconds).await, 1.0);
    for (event, count) in [
        ("granted", 3.0),
        ("freed", 2.0),
        ("expired", 0.0),
        ("revived", 0.0),
    ] {
        assert_eq!(slots(&sidecar, event).await, count, "{event}");
    }
    eventually("nobody renews the other", async || {
        sidecar.metric(IN_USE).await == 0.0
    })
    .await;
    assert_eq!(holds(&sidecar, "").await["holds"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_nobody_frees_are_counted_and_so_are_those_that_come_back() {
    let (sidecar, _redis) = sidecar(2, ", longest: 3s").await;
    let lost = take(&sidecar, "streams", "mallory").await["receipt"][0].take();
    let kept = take(&sidecar, "streams", "mallory").await["receipt"][0].take();
    // Only what still runs is asked for again.
    eventually("the slot of the one that crashed is free", async || {
        assert_eq!(
            settle(&sidecar, &kept, "within_ms").await["outcome"],
            "renewed"
        );
        take(&sidecar, "streams", "mallory").await["outcome"] == "admitted"
    })
    .await;
    assert_eq!(slots(&sidecar, "expired").await, 1.0);
    assert_eq!(slots(&sidecar, "revived").await, 0.0);
    // It had not crashed: its sidecar was away.
    assert_eq!(
        settle(&sidecar, &lost, "within_ms").await["outcome"],
        "renewed"
    );
    assert_eq!(slots(&sidecar, "revived").await, 1.0);
    let all = holds(&sidecar, "").await;
    let outlived = all["holds"].as_array().unwrap().iter();
    let outlived: Vec<_> = outlived.map(|hold| hold["outlived"] == true).collect();
    assert_eq!(outlived, [true, true, false], "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_a_slot_are_counted_by_how_they_ended() {
    let (sidecar, _redis) = sidecar(1, "").await;
    let receipt = take(&sidecar, "streams", "mallory").await["receipt"][0].take();
    let waits = async |verdict: &str| {
        let labels = format!("{{limit=\"streams\",verdict=\"{verdict}\"}}");
        let name = format!("sluicegate_slot_waits_total{labels}");
        sidecar.metric(&name).await
    };
    let wait = async |wait_ms: u64| {
        let decision = json!({ "checks": [check("streams", "mallory")] });
        let body = json!({ "decisions": [decision], "wait_ms": wait_ms });
        let mut answer = ask(sidecar.port, "/v1/decide", body).await;
        answer["verdicts"][0].take()
    };
    assert_eq!(wait(1).await["outcome"], "denied");
    assert_eq!((waits("denied").await, waits("admitted").await), (1.0, 0.0));
    settle(&sidecar, &receipt, "units").await;
    // It may be freed before the other asks, who then need not wait.
    eventually("one waits and is admitted", async || {
        let receipt = take(&sidecar, "streams", "mallory").await["receipt"][0].take();
        let (waited, freed) = tokio::join!(wait(1_000), settle(&sidecar, &receipt, "units"));
        let outcomes = (&waited["outcome"], &freed["units"]);
        assert_eq!(outcomes, (&json!("admitted"), &json!(1)));
        settle(&sidecar, &waited["receipt"][0], "units").await;
        waits("admitted").await == 1.0
    })
    .await;
    assert_eq!(waits("denied").await, 1.0);
}
