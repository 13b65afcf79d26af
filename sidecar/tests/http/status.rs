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
