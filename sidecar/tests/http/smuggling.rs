//! Requests that two servers could divide differently. Whatever the sidecar makes of the first, it never finds a second one
//! in it.

use std::net::SocketAddr;

use super::{BODY, decide, exchange, start};

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
    let headers = format!("host: s\r\ncontent-length: {}\r\n", body.len());
    decide(port, &headers, body).1.contains("admitted")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_doubtful_length_brings_no_second_one() {
    let (port, _) = start().await;
    let second = second();
    let whole = second.len();
    let chunks = format!("0\r\n\r\n{second}");
    let all = chunks.len();
    for (head, rest) in [
        // Both lengths: the chunks count, and nothing after them.
        (
            format!("content-length: {all}\r\ntransfer-encoding: chunked\r\n"),
            &chunks,
        ),
        (
            format!("transfer-encoding: chunked\r\ncontent-length: {all}\r\n"),
            &chunks,
        ),
        ("transfer-encoding: chunked\r\n".to_owned(), &chunks),
        ("Transfer-Encoding: CHUNKED\r\n".to_owned(), &chunks),
        // Codings that another server may not know, or may find.
        ("transfer-encoding: xchunked\r\n".to_owned(), &chunks),
        (
            "transfer-encoding: chunked, identity\r\n".to_owned(),
            &chunks,
        ),
        ("transfer-encoding: identity\r\n".to_owned(), &second),
        (
            "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n".to_owned(),
            &chunks,
        ),
        ("transfer-encoding : chunked\r\n".to_owned(), &chunks),
        ("transfer-encoding:\r\n chunked\r\n".to_owned(), &chunks),
        ("transfer-encoding: \x0bchunked\r\n".to_owned(), &chunks),
        // Lengths that are none, or two.
        (
            format!("content-length: 0\r\ncontent-length: {whole}\r\n"),
            &second,
        ),
        (format!("content-length: {whole}, 0\r\n"), &second),
        ("content-length: +0\r\n".to_owned(), &second),
        ("content-length: -1\r\n".to_owned(), &second),
        ("content-length: 0x0\r\n".to_owned(), &second),
        (
            "content-length: 18446744073709551616\r\n".to_owned(),
            &second,
        ),
        ("content-length : 0\r\n".to_owned(), &second),
        ("content-length:\r\n 0\r\n".to_owned(), &second),
        ("x: a\rcontent-length: 0\r\n".to_owned(), &second),
        ("x: a\0b\r\n".to_owned(), &second),
    ] {
        let answer = exchange(
            port,
            &format!("POST /v1/decide HTTP/1.1\r\nhost: s\r\n{head}\r\n{rest}"),
        );
        assert!(
            answer.matches("HTTP/1.1 ").count() <= 1,
            "{head:?}: {answer}"
        );
        assert!(has_its_unit(port), "{head:?}: {answer}");
    }
    // Chunks whose sizes another server would read differently.
    for chunks in [
        format!("10000000000000000\r\n\r\n{second}"),
        format!("0x0\r\n\r\n{second}"),
        format!("-0\r\n\r\n{second}"),
        format!("0;\n\r\n\r\n{second}"),
        format!("1\r\n{{x0\r\n\r\n{second}"),
    ] {
        let head = "POST /v1/decide HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n";
        let answer = exchange(port, &format!("{head}\r\n{chunks}"));
        assert!(
            answer.matches("HTTP/1.1 ").count() <= 1,
            "{chunks:?}: {answer}"
        );
        assert!(has_its_unit(port), "{chunks:?}: {answer}");
    }
    // Two whole requests on one connection are two: the second one would have been found.
    let first = second
        .replace("smuggled", "k-direct")
        .replace("connection: close\r\n", "");
    let answer = exchange(port, &(first + &second));
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    assert!(!has_its_unit(port));
}
