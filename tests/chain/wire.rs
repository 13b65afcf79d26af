//! `POST /v1/decide`, metrics and probes, as seen with curl.

use serde_json::{Value, json};
use sluicegate_tests::client::{get, post};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;

use super::support::policy;

async fn decide(sidecar: &Sidecar, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let (status, body) = post(
        &format!("http://127.0.0.1:{}/v1/decide", sidecar.port),
        body,
    )
    .await;
    (
        status,
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")),
    )
}

#[tokio::test]
async fn one_bad_decision_in_a_batch_does_not_affect_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(&policy("memory", "sliding_log", 2, "1h"), folder.path()).await;
    let check = json!({ "limit": "per-key", "key": "k" });
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
    let (status, answer) = decide(&sidecar, body.to_string()).await;
    assert_eq!((status, &answer["epoch"]), (200, &json!(1)));
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

#[tokio::test]
async fn an_invalid_body_gets_an_error_that_names_its_fault() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(&policy("memory", "sliding_log", 2, "1h"), folder.path()).await;
    let one = json!({ "checks": [{ "limit": "per-key", "key": "k" }] });
    for (body, status, code) in [
        ("{".to_owned(), 400, "malformed_json"),
        (
            json!({ "decisions": vec![one; 1025] }).to_string(),
            400,
            "too_many_entries",
        ),
        (" ".repeat((1 << 20) + 1), 413, "body_too_large"),
    ] {
        let (given, answer) = decide(&sidecar, body).await;
        assert_eq!(
            (given, answer["code"].as_str()),
            (status, Some(code)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn probes_report_liveness_and_whether_the_store_answers() {
    let folder = tempfile::tempdir().unwrap();
    let at = |port, path: &str| format!("http://127.0.0.1:{port}{path}");
    let sidecar = Sidecar::start(&policy("memory", "sliding_log", 2, "1h"), folder.path()).await;
    assert_eq!(get(&at(sidecar.admin_port, "/healthz")).await.0, 200);
    assert_eq!(get(&at(sidecar.admin_port, "/readyz")).await.0, 200);
    assert_eq!(
        get(&at(sidecar.port, "/metrics")).await.0,
        404,
        "metrics are on the admin port only"
    );

    let nowhere = format!(
        "redis://127.0.0.1:{}",
        sluicegate_tests::process::free_port()
    );
    let policy = policy(&nowhere, "sliding_log", 2, "1h").replace("2s", "200ms");
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    assert_eq!(get(&at(sidecar.admin_port, "/healthz")).await.0, 200);
    eventually("it reports that the store is away", async || {
        let (status, why) = get(&at(sidecar.admin_port, "/readyz")).await;
        assert_eq!(status, 200, "S10: all sidecars have the same store: {why}");
        why.contains("the store has not answered for")
    })
    .await;
    let sidecar = Sidecar::with(&policy)
        .arguments(&["--ready-needs-store"])
        .start(folder.path())
        .await;
    let (status, why) = get(&at(sidecar.admin_port, "/readyz")).await;
    assert_eq!(status, 503, "{why}");
}

#[tokio::test]
async fn a_shadow_decision_without_a_verdict_is_not_counted_as_a_client_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!(
        "redis://127.0.0.1:{}",
        sluicegate_tests::process::free_port()
    );
    let policy = policy(&nowhere, "sliding_log", 2, "1h").replace("2s", "200ms");
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    let [known, unknown] =
        ["per-key", "per-kee"].map(|limit| json!([{ "limit": limit, "key": "k" }]));
    let body = json!({ "decisions": [
        { "checks": known, "shadow": "trial" },
        { "checks": unknown, "shadow": "trial" },
    ]});
    let (status, answer) = decide(&sidecar, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let outcome = |index: usize| answer["verdicts"][index]["outcome"].as_str();
    assert_eq!(
        (outcome(0), outcome(1)),
        (Some("unavailable"), Some("error"))
    );
    for (limit, source, verdict, count) in [
        ("per-key", "store", "unavailable", 0.0),
        ("per-key", "store", "shadow_unavailable", 1.0),
        ("", "request", "error", 0.0),
        ("", "request", "shadow_error", 1.0),
    ] {
        let labels = format!("limit=\"{limit}\",source=\"{source}\",verdict=\"{verdict}\"");
        let name = format!("sluicegate_decisions_total{{{labels}}}");
        assert_eq!(sidecar.metric(&name).await, count, "{name}");
    }
    for (limit, verdict) in [("per-key", "unavailable"), ("", "error")] {
        let labels = format!("limit=\"{limit}\",rule=\"trial\",verdict=\"{verdict}\"");
        let name = format!("sluicegate_shadow_decisions_total{{{labels}}}");
        assert_eq!(sidecar.metric(&name).await, 1.0, "{name}");
    }
}

#[test]
fn an_invalid_policy_ends_the_command_before_a_port_is_bound() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy("memory", "sliding_log", 0, "1h")).unwrap();
    let output = std::process::Command::new(sluicegate_tests::sidecar::binary())
        .args(["serve", "--policy"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8_lossy(&output.stderr);
    for name in [
        "policy.yaml",
        "line 6",
        "`per-key`",
        "window 1",
        "`quota` is 0",
    ] {
        assert!(said.contains(name), "no {name} in {said}");
    }
}
