//! Every error is a problem detail with a code, and names the field that is wrong.

use std::net::SocketAddr;

use serde_json::Value;
use sluicegate::server::listen::Address;
use sluicegate::server::{Access, Settings, Token};

use super::{BODY, exchange, start, start_with};

const HOST: &str = "host: 127.0.0.1\r\n";
const JSON: &str = "content-type: application/json\r\n";

/// Head and body of the answer to a request.
fn ask(port: SocketAddr, target: &str, headers: &str, body: &str) -> (String, Value) {
    let length = body.len();
    let request = format!(
        "{target} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    let answer = exchange(port, &request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    (head.to_owned(), body)
}

/// Asks, and expects a problem detail.
#[track_caller]
fn refused(
    port: SocketAddr,
    target: &str,
    headers: &str,
    body: &str,
    expected: (u16, &str, Option<&str>),
) -> String {
    let (head, problem) = ask(port, target, headers, body);
    let given = (
        head[9..12].parse().unwrap(),
        problem["code"].as_str().unwrap(),
        problem["field"].as_str(),
    );
    assert_eq!(given, expected, "{target} {headers:?}: {problem}");
    assert!(
        head.contains("content-type: application/problem+json"),
        "{head}"
    );
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["status"], expected.0);
    assert!(!problem["title"].as_str().unwrap().is_empty());
    assert!(!problem["detail"].as_str().unwrap().is_empty());
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_on_the_port_for_decisions_name_their_field() {
    let (port, _) = start().await;
    let decide = "POST /v1/decide";
    for (target, headers, body, expected) in [
        ("GET /nowhere", HOST, "", (404, "not_found", Some("path"))),
        ("GET /metrics", HOST, "", (404, "not_found", Some("path"))),
        (
            "GET /v1/decide",
            HOST,
            "",
            (405, "method_not_allowed", Some("method")),
        ),
        (decide, "", BODY, (400, "bad_host", Some("header.host"))),
        (
            decide,
            "host: a\r\norigin: http://a\r\n",
            BODY,
            (403, "from_web_page", Some("header.origin")),
        ),
        (
            decide,
            "host: a\r\nsec-fetch-site: none\r\n",
            BODY,
            (403, "from_web_page", Some("header.sec-fetch-site")),
        ),
        (
            decide,
            "host: a\r\ncontent-type: text/plain\r\n",
            BODY,
            (415, "not_json", Some("header.content-type")),
        ),
        (decide, HOST, "{", (400, "malformed_json", Some("body"))),
        (
            decide,
            HOST,
            "{}",
            (400, "malformed_json", Some("decisions")),
        ),
        (
            decide,
            HOST,
            r#"{"decisions":[],"denied":[{"limit":"a","count":"secret"}]}"#,
            (400, "malformed_json", Some("denied[0].count")),
        ),
        (
            "POST /v1/give-back",
            HOST,
            r#"{"give_back":[]}"#,
            (400, "malformed_json", Some("give_back")),
        ),
        (
            "POST /v1/decide?denied=1",
            HOST,
            BODY,
            (400, "bad_query", Some("query.denied")),
        ),
        (
            "POST /v1/decide?denied=429",
            HOST,
            r#"{"decisions":[]}"#,
            (400, "too_many_entries", Some("decisions")),
        ),
        (
            "POST /v1/decide?denied=429",
            HOST,
            r#"{"decisions":[{"checks":[{"limit":"nope","key":"secret"}]}]}"#,
            (400, "unknown_limit", Some("decisions[0].checks[0].limit")),
        ),
    ] {
        refused(port, target, headers, body, expected);
        assert!(
            !ask(port, target, headers, body)
                .1
                .to_string()
                .contains("secret")
        );
    }
    let large = " ".repeat((1 << 20) + 1);
    let expected = (413, "body_too_large", Some("body"));
    refused(port, decide, HOST, &large, expected);
    let chunked = format!(
        "{decide} HTTP/1.1\r\nconnection: close\r\n{HOST}transfer-encoding: chunked\r\n\r\nzz\r\n"
    );
    let answer = exchange(port, &chunked);
    assert!(
        answer.contains("\"code\":\"broken_body\",\"field\":\"body\""),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_on_the_admin_port_name_their_field() {
    let address: Address = "127.0.0.1:9181".parse().unwrap();
    let mut access = Access::to(&address, Vec::new());
    let local = start_with(Settings {
        access: access.clone(),
        ..Settings::default()
    });
    let (_, local) = local.await;
    let post = format!("{HOST}{JSON}");
    for (target, headers, body, expected) in [
        ("GET /nowhere", HOST, "", (404, "not_found", Some("path"))),
        ("GET /page/x", HOST, "", (404, "not_found", Some("path"))),
        ("GET /page/%FF", HOST, "", (404, "not_found", Some("path"))),
        (
            "GET /v1/top",
            "host: evil.example\r\n",
            "",
            (421, "wrong_host", Some("header.host")),
        ),
        (
            "GET /v1/top",
            "host: localhost\r\norigin: http://evil.example\r\n",
            "",
            (403, "from_web_page", Some("header.origin")),
        ),
        (
            "POST /v1/reset",
            HOST,
            "{}",
            (415, "not_json", Some("header.content-type")),
        ),
        (
            "POST /v1/reset",
            &post,
            "{}",
            (400, "malformed_json", Some("resets")),
        ),
        // The method is wrong whatever the body is called.
        (
            "POST /v1/top",
            HOST,
            "{}",
            (405, "method_not_allowed", Some("method")),
        ),
        (
            "DELETE /healthz",
            HOST,
            "",
            (405, "method_not_allowed", Some("method")),
        ),
    ] {
        let head = refused(local, target, headers, body, expected);
        let allowed = head.contains("allow: GET,HEAD");
        assert_eq!(allowed, expected.0 == 405, "{target}: {head}");
    }

    access.token = Token::new("t0ken".to_owned());
    let with_token = start_with(Settings {
        access,
        ..Settings::default()
    });
    let (_, with_token) = with_token.await;
    let expected = (401, "token_required", Some("header.authorization"));
    let wrong = format!("{HOST}authorization: Bearer wr0ng\r\n");
    let head = refused(with_token, "GET /v1/top", &wrong, "", expected);
    assert!(head.contains("www-authenticate: "), "{head}");
    // Nor can anyone learn which paths there are.
    refused(with_token, "GET /nowhere", HOST, "", expected);

    let remote = Access::to(&"0.0.0.0:9181".parse().unwrap(), Vec::new());
    let remote = start_with(Settings {
        access: remote,
        ..Settings::default()
    });
    let (_, remote) = remote.await;
    let expected = (403, "token_required", Some("header.authorization"));
    refused(remote, "POST /v1/reset", &post, "{}", expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entrys_error_names_its_field_in_the_body() {
    let address: Address = "127.0.0.1:9181".parse().unwrap();
    let settings = Settings {
        access: Access::to(&address, Vec::new()),
        ..Settings::default()
    };
    let (port, admin) = start_with(settings).await;
    let good = r#"{"limit":"per-key","key":"k"}"#;
    for (decision, field) in [
        (
            format!(r#"{{"checks":[{good},{{"limit":"nope","key":"k"}}]}}"#),
            "decisions[1].checks[1].limit",
        ),
        (
            r#"{"checks":[{"limit":"per-key","key":"k","cost":9}]}"#.to_owned(),
            "decisions[1].checks[0].cost",
        ),
        (
            r#"{"checks":[{"limit":"per-key","key":""}]}"#.to_owned(),
            "decisions[1].checks[0].key",
        ),
        (
            r#"{"checks":[{"limit":"per-key"}]}"#.to_owned(),
            "decisions[1].checks[0].key",
        ),
        (r#"{"checks":[]}"#.to_owned(), "decisions[1].checks"),
        (r#""x""#.to_owned(), "decisions[1]"),
        (r#"[[]]"#.to_owned(), "decisions[1]"),
    ] {
        let body = format!(r#"{{"decisions":[{{"checks":[{good}],"peek":true}},{decision}]}}"#);
        let (_, answer) = ask(port, "POST /v1/decide", HOST, &body);
        assert_eq!(
            answer["verdicts"][1]["field"], field,
            "{decision}: {answer}"
        );
        assert!(answer["verdicts"][0].get("field").is_none(), "{answer}");
    }
    let give_back = format!(
        r#"{{"give_backs":[{},{{"limit":"no","key":"k","receipt":"r"}}]}}"#,
        r#"{"limit":"per-key","key":"k","receipt":"r"}"#
    );
    let (_, answer) = ask(port, "POST /v1/give-back", HOST, &give_back);
    assert_eq!(answer["outcomes"][0]["field"], "give_backs[0].receipt");
    assert_eq!(answer["outcomes"][1]["field"], "give_backs[1].limit");
    let reset = r#"{"resets":[{"limit":"no","key":"k"}]}"#;
    let (_, answer) = ask(admin, "POST /v1/reset", &format!("{HOST}{JSON}"), reset);
    assert_eq!(answer["outcomes"][0]["field"], "resets[0].limit");
}
