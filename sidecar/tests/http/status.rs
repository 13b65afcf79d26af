//! S27: a verdict as an HTTP status, for clients that check nothing else.

use std::net::SocketAddr;

use super::{BODY, start};

/// Status, Retry-After and body of the answer.
fn ask(port: SocketAddr, query: &str, body: &str) -> (u16, Option<u64>, String) {
    let head = format!(
        "POST /v1/decide{query} HTTP/1.1\r\nhost: s\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = super::exchange(port, &head);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let retry_after = head
        .lines()
        .find_map(|line| line.strip_prefix("retry-after: "))
        .map(|seconds| seconds.parse().unwrap());
    (head[9..12].parse().unwrap(), retry_after, body.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn s27_a_denial_can_be_a_429_which_makes_curl_fail() {
    let (port, _) = start().await;
    let (status, retry_after, body) = ask(port, "?denied=429", BODY);
    assert_eq!((status, retry_after), (200, None), "{body}");
    let (status, retry_after, body) = ask(port, "?denied=429", BODY);
    assert_eq!(status, 429);
    assert!(
        (3_500..=3_600).contains(&retry_after.unwrap()),
        "{retry_after:?}"
    );
    assert!(
        body.contains("\"outcome\":\"denied\""),
        "the body still has the verdicts: {body}"
    );
    // Without the parameter, the status is 200.
    assert_eq!(ask(port, "", BODY).0, 200);
    let unknown = BODY.replace("per-key", "nope");
    assert_eq!(ask(port, "?x=1&denied=429", &unknown).0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn s27_denied_429_requires_a_single_decision() {
    let (port, _) = start().await;
    let one = r#"{"checks":[{"limit":"per-key","key":"k"}]}"#;
    let two = format!(r#"{{"decisions":[{one},{one}]}}"#);
    let (status, _, why) = ask(port, "?denied=429", &two);
    assert!(
        status == 400 && why.contains("one decision"),
        "{status} {why}"
    );
    assert_eq!(ask(port, "?denied=418", BODY).0, 400);
    let (status, ..) = ask(port, "?denied=429", BODY);
    assert_eq!(status, 200, "no unit was consumed");
}
