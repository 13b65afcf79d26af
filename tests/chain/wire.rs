//! `POST /v1/decide`, metrics and probes, as seen with curl.

use serde_json::json;
use sluicegate_tests::client::get;
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, ask, check, decide_all, decided, policy};

#[tokio::test]
async fn one_bad_decision_in_a_batch_does_not_affect_the_others() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 2, "1h")).await;
    let check = check("per-key", "k");
    let body = json!({ "decisions": [
        { "checks": [check] },
        { "checks": [{ "limit": "per-kee", "key": "k" }] },
        { "checks": [check], "peek": true },
        { "checks": [{ "limit": "per-key", "key": "k", "cost": 3 }] },
        { "checks": [check, check] },
        { "checks": vec![&check; 33] },
        { "checks": [{ "limit": "per-key", "key": "k", "cost": 0.5 }] },
        { "checks": [check] },
        { "checks": [check] },
    ]});
    let answer = ask(sidecar.port, "/v1/decide", body).await;
    assert_eq!(answer["epoch"], 1);
    let outcomes: Vec<_> = answer["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|verdict| {
            (
                verdict["outcome"].as_str().unwrap(),
                verdict["code"].as_str(),
                verdict["remaining"].as_u64(),
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            ("admitted", None, Some(1)),
            ("error", Some("unknown_limit"), None),
            ("admitted", None, Some(1)),
            ("error", Some("cost_over_limit"), None),
            // The same check twice is one check of both costs: 2, of which only 1 is left.
            ("denied", None, Some(1)),
            ("error", Some("too_many_checks"), None),
            ("error", Some("malformed_entry"), None),
            ("admitted", None, Some(0)),
            ("denied", None, Some(0)),
        ]
    );
    let retry_after_ms = answer["verdicts"][8]["retry_after_ms"].as_u64().unwrap();
    assert!(
        (3_590_000..=3_600_000).contains(&retry_after_ms),
        "{retry_after_ms}"
    );
    assert!(
        answer["verdicts"][1]["message"]
            .as_str()
            .unwrap()
            .contains("`per-key`"),
        "{answer}"
    );
}

fn policy_of_a_redis_that_is_away() -> String {
    let policy = Policy::on(format!("redis://127.0.0.1:{}", free_port())).timeout("200ms");
    policy.window("per-key", "sliding_log", 2, "1h").text()
}

#[tokio::test]
async fn probes_report_liveness_and_whether_the_store_answers() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 2, "1h")).await;
    assert_eq!(get(&sidecar.admin("/healthz")).await.0, 200);
    assert_eq!(get(&sidecar.admin("/readyz")).await.0, 200);
    assert_eq!(
        get(&sidecar.url("/metrics")).await.0,
        404,
        "metrics are on the admin port only"
    );

    let policy = policy_of_a_redis_that_is_away();
    let sidecar = Sidecar::alone(&policy).await;
    assert_eq!(get(&sidecar.admin("/healthz")).await.0, 200);
    eventually("it reports that the store is away", async || {
        let (status, why) = get(&sidecar.admin("/readyz")).await;
        assert_eq!(status, 200, "S10: all sidecars have the same store: {why}");
        why.contains("the store has not answered for")
    })
    .await;
    let sidecar = Sidecar::with(&policy)
        .arguments(&["--ready-needs-store"])
        .alone()
        .await;
    let (status, why) = get(&sidecar.admin("/readyz")).await;
    assert_eq!(status, 503, "{why}");
}

#[tokio::test]
async fn a_shadow_decision_without_a_verdict_is_not_counted_as_a_client_without_one() {
    let policy = policy_of_a_redis_that_is_away();
    let sidecar = Sidecar::alone(&policy).await;
    let trial = |limit| json!({ "checks": [check(limit, "k")], "shadow": "trial" });
    let decisions = vec![trial("per-key"), trial("per-kee")];
    let verdicts = decide_all(&sidecar, decisions).await;
    assert_eq!(verdicts[0]["outcome"], "unavailable");
    assert_eq!(verdicts[1]["outcome"], "error");
    for (limit, source, verdict, count) in [
        ("per-key", "store", "unavailable", 0),
        ("per-key", "store", "shadow_unavailable", 1),
        ("", "request", "error", 0),
        ("", "request", "shadow_error", 1),
    ] {
        let counted = decided(&sidecar, limit, source, verdict).await;
        assert_eq!(counted, count, "{limit} {verdict}");
    }
    for (limit, verdict) in [("per-key", "unavailable"), ("", "error")] {
        // The policy has no rule of this name.
        let labels = format!("limit=\"{limit}\",rule=\"other\",verdict=\"{verdict}\"");
        let name = format!("sluicegate_shadow_decisions_total{{{labels}}}");
        assert_eq!(sidecar.metric(&name).await, 1.0, "{name}");
    }
}
