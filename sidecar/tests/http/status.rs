//! S27: a verdict as an HTTP status, for clients that check nothing else.

use std::net::SocketAddr;

use super::{BODY, HOST, start};
use crate::support::has;

/// Status, Retry-After and body of the answer.
fn ask(port: SocketAddr, query: &str, body: &str) -> (u16, Option<u64>, String) {
    let answer = super::ask(port, &format!("POST /v1/decide{query}"), HOST, body);
    let mut lines = answer.head.lines();
    let retry_after = lines.find_map(|line| line.strip_prefix("retry-after: "));
    let retry_after = retry_after.map(|seconds| seconds.parse().unwrap());
    (answer.status, retry_after, answer.body)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_can_be_a_429_which_makes_curl_fail() {
    let (port, _) = start().await;
    let (status, retry_after, body) = ask(port, "?denied=429", BODY);
    assert_eq!((status, retry_after), (200, None), "{body}");
    let (status, retry_after, body) = ask(port, "?denied=429", BODY);
    assert_eq!(status, 429);
    // Of an hour; the rest is for machines that stall.
    assert!((3_000..=3_600).contains(&retry_after.unwrap()));
    // The body still has the verdicts.
    has(&body, "\"outcome\":\"denied\"");
    // Without the parameter, the status is 200.
    assert_eq!(ask(port, "", BODY).0, 200);
    let unknown = BODY.replace("per-key", "nope");
    assert_eq!(ask(port, "?x=1&denied=429", &unknown).0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_429_requires_a_single_decision() {
    let (port, _) = start().await;
    let one = r#"{"checks":[{"limit":"per-key","key":"k"}]}"#;
    let two = format!(r#"{{"decisions":[{one},{one}]}}"#);
    let (status, _, why) = ask(port, "?denied=429", &two);
    assert_eq!(status, 400);
    has(&why, "one decision");
    assert_eq!(ask(port, "?denied=418", BODY).0, 400);
    let (status, ..) = ask(port, "?denied=429", BODY);
    assert_eq!(status, 200, "no unit was consumed");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_settles_say_was_used_is_compared_with_what_was_reserved() {
    let (port, admin) = start().await;
    let with_receipt = BODY.replace("}]}", "}],\"receipt\":true}");
    let body = |port, line: &str, body: &str| super::ask(port, line, HOST, body).body;
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
    let settle = |key: &str, units: u64| {
        let asked = with_receipt.replace("\"k\"", &format!("\"{key}\""));
        let decided = json(body(port, super::DECIDE, &asked));
        let receipt = &decided["verdicts"][0]["receipt"][0];
        let settle = serde_json::json!({ "settles": [
            { "limit": "per-key", "key": key, "receipt": receipt, "units": units },
        ] });
        let settled = body(port, "POST /v1/settle", &settle.to_string());
        has(&settled, if units == 0 { "returned" } else { "charged" });
    };
    let reserves = || json(body(admin, "GET /v1/top", ""))["limits"][0]["reserves"].take();
    assert!(reserves().is_null());
    settle("k", 0);
    // A whole unit is returned, and nothing is denied.
    assert_eq!(
        reserves(),
        serde_json::json!({ "used_ratio": 0.0, "starve": false })
    );
    has(&body(port, super::DECIDE, BODY), "admitted");
    has(&body(port, super::DECIDE, BODY), "denied");
    assert_eq!(reserves()["starve"], true);
    settle("other", 3);
    assert_eq!(
        reserves(),
        serde_json::json!({ "used_ratio": 1.5, "starve": false })
    );
    let metrics = body(admin, "GET /metrics", "");
    for (outcome, units) in [("used", 3), ("returned", 1), ("charged", 2)] {
        has(
            &metrics,
            &format!(
                "sluicegate_settled_units_total{{limit=\"per-key\",outcome=\"{outcome}\"}} {units}\n"
            ),
        );
    }
}
