//! Requests that two servers could divide differently. Whatever the sidecar makes of the first, it never finds a second one
//! in it.

use std::net::SocketAddr;

use super::{BODY, DECIDE, HOST, ask, exchange, start};

/// A request that takes the only unit of another key, if the sidecar finds it.
fn second() -> String {
    let body = BODY.replace(r#""k""#, r#""smuggled""#);
    let length = body.len();
    let head = "POST /v1/decide HTTP/1.1\r\nhost: s\r\nconnection: close\r\n";
    format!("{head}content-length: {length}\r\n\r\n{body}")
}

/// Whether the key of [`second`] still has its unit.
fn has_its_unit(port: SocketAddr) -> bool {
    let body = r#"{"decisions":[{"checks":[{"limit":"per-key","key":"smuggled"}],"peek":true}]}"#;
    ask(port, DECIDE, HOST, body).body.contains("admitted")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_doubtful_length_brings_no_second_one() {
    let (port, _) = start().await;
    let second = second();
    let whole = second.len();
    let chunks = format!("0\r\n\r\n{second}");
    let all = chunks.len();
    let brings_none = |head: &str, rest: &str| {
        let request = format!("POST /v1/decide HTTP/1.1\r\nhost: s\r\n{head}\r\n\r\n{rest}");
        let answer = exchange(port, &request);
        let answers = answer.matches("HTTP/1.1 ").count();
        assert!(answers <= 1 && has_its_unit(port), "{request:?}: {answer}");
    };
    for head in [
        // Both lengths: the chunks count, and nothing after them.
        &format!("content-length: {all}\r\ntransfer-encoding: chunked"),
        &format!("transfer-encoding: chunked\r\ncontent-length: {all}"),
        "transfer-encoding: chunked",
        "Transfer-Encoding: CHUNKED",
        // Codings that another server may not know, or may find.
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "transfer-encoding : chunked",
        "transfer-encoding:\r\n chunked",
        "transfer-encoding: \x0bchunked",
    ] {
        brings_none(head, &chunks);
    }
    for head in [
        "transfer-encoding: identity",
        // Lengths that are none, or two.
        &format!("content-length: 0\r\ncontent-length: {whole}"),
        &format!("content-length: {whole}, 0"),
        "content-length: +0",
        "content-length: -1",
        "content-length: 0x0",
        "content-length: 18446744073709551616",
        "content-length : 0",
        "content-length:\r\n 0",
        "x: a\rcontent-length: 0",
        "x: a\0b",
    ] {
        brings_none(head, &second);
    }
    // Chunks whose sizes another server would read differently.
    for size in ["10000000000000000", "0x0", "-0", "0;\n", "1\r\n{x0"] {
        let chunks = format!("{size}\r\n\r\n{second}");
        brings_none("transfer-encoding: chunked", &chunks);
    }
    // Two whole requests on one connection are two: the second one would have been found.
    let first = second
        .replace("smuggled", "k-direct")
        .replace("connection: close\r\n", "");
    let answer = exchange(port, &(first + &second));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    assert!(!has_its_unit(port));
}
