//! Every error is a problem detail with a code, and names the field that is wrong.

use std::net::SocketAddr;

use serde_json::Value;
use sluicegate::server::Token;

use super::{BODY, DECIDE, HOST, JSON, access_to, admin_with, ask, start, start_for};
use crate::support::{has, lacks, rows};

/// Asks, and expects a problem detail: its status, code and field. Returns the answer's head.
#[track_caller]
fn refused(
    port: SocketAddr,
    target: &str,
    headers: &str,
    body: &str,
    (status, code, field): (u16, &str, &str),
) -> String {
    let answer = ask(port, target, headers, body);
    let problem: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer.status, status, "{target} {headers:?}: {problem}");
    for (member, value) in [("code", code), ("field", field), ("type", "about:blank")] {
        assert_eq!(problem[member], value, "{target} {headers:?}: {problem}");
    }
    assert_eq!(problem["status"], status);
    for text in ["title", "detail"] {
        assert!(!problem[text].as_str().unwrap().is_empty());
    }
    has(&answer.head, "content-type: application/problem+json");
    lacks(&answer.body, "secret");
    answer.head
}

/// The same of each row: what is expected, and what is asked. Returns statuses and heads.
fn all_refused(port: SocketAddr, table: &str) -> Vec<(u16, String)> {
    let one = |[status, code, field, target, headers, body]: [String; 6]| {
        let headers = headers.replace("HOST", HOST.trim_end()) + "\r\n";
        let headers = headers.replace("; ", "\r\n");
        let body = body.replace("BODY", BODY);
        let status = status.parse().unwrap();
        let expected = (status, code.as_str(), field.as_str());
        let head = refused(port, &target, headers.trim_start(), &body, expected);
        (status, head)
    };
    rows(table).map(one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_on_the_port_for_decisions_name_their_field() {
    let (port, _) = start().await;
    let table = r#"
        404 | not_found | path | GET /nowhere | HOST |
        404 | not_found | path | GET /metrics | HOST |
        405 | method_not_allowed | method | GET /v1/decide | HOST |
        400 | bad_host | header.host | POST /v1/decide |  | BODY
        403 | from_web_page | header.origin | POST /v1/decide | host: a; origin: http://a | BODY
        403 | from_web_page | header.sec-fetch-site | POST /v1/decide | host: a; sec-fetch-site: none | BODY
        415 | not_json | header.content-type | POST /v1/decide | host: a; content-type: text/plain | BODY
        400 | malformed_json | body | POST /v1/decide | HOST | {
        400 | malformed_json | decisions | POST /v1/decide | HOST | {}
        400 | malformed_json | denied[0].count | POST /v1/decide | HOST | {"decisions":[],"denied":[{"limit":"a","count":"secret"}]}
        400 | malformed_json | settle | POST /v1/settle | HOST | {"settle":[]}
        400 | bad_query | query.denied | POST /v1/decide?denied=1 | HOST | BODY
        400 | too_many_entries | decisions | POST /v1/decide?denied=429 | HOST | {"decisions":[]}
        400 | unknown_limit | decisions[0].checks[0].limit | POST /v1/decide?denied=429 | HOST | {"decisions":[{"checks":[{"limit":"nope","key":"secret"}]}]}
    "#;
    all_refused(port, table);
    let large = " ".repeat((1 << 20) + 1);
    let expected = (413, "body_too_large", "body");
    refused(port, DECIDE, HOST, &large, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_on_the_admin_port_name_their_field() {
    let mut access = access_to("127.0.0.1:9181", &[]);
    let local = admin_with(access.clone()).await;
    let post = format!("{HOST}{JSON}");
    let table = r#"
        404 | not_found | path | GET /nowhere | HOST |
        404 | not_found | path | GET /page/x | HOST |
        404 | not_found | path | GET /page/%FF | HOST |
        421 | wrong_host | header.host | GET /v1/top | host: evil.example |
        403 | from_web_page | header.origin | GET /v1/top | host: localhost; origin: http://evil.example |
        415 | not_json | header.content-type | POST /v1/reset | HOST | {}
        400 | malformed_json | resets | POST /v1/reset | host: 127.0.0.1; content-type: application/json | {}
        # The method is wrong whatever the body is called.
        405 | method_not_allowed | method | POST /v1/top | HOST | {}
        405 | method_not_allowed | method | DELETE /healthz | HOST |
    "#;
    for (status, head) in all_refused(local, table) {
        let allowed = head.contains("allow: GET,HEAD");
        assert_eq!(allowed, status == 405, "{head}");
    }

    access.token = Token::new("t0ken".to_owned());
    let with_token = admin_with(access).await;
    let expected = (401, "token_required", "header.authorization");
    let wrong = format!("{HOST}authorization: Bearer wr0ng\r\n");
    let head = refused(with_token, "GET /v1/top", &wrong, "", expected);
    has(&head, "www-authenticate: ");
    // Nor can anyone learn which paths there are.
    refused(with_token, "GET /nowhere", HOST, "", expected);

    let remote = admin_with(access_to("0.0.0.0:9181", &[])).await;
    let expected = (403, "token_required", "header.authorization");
    refused(remote, "POST /v1/reset", &post, "{}", expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entrys_error_names_its_field_in_the_body() {
    let (port, admin) = start_for(access_to("127.0.0.1:9181", &[])).await;
    let ask = |port, target, headers: &str, body: &str| -> Value {
        serde_json::from_str(&ask(port, target, headers, body).body).unwrap()
    };
    let good = r#"{"limit":"per-key","key":"k"}"#;
    let table = r#"
        .checks[1].limit | {"checks":[GOOD,{"limit":"nope","key":"k"}]}
        .checks[0].cost | {"checks":[{"limit":"per-key","key":"k","cost":9}]}
        .checks[0].key | {"checks":[{"limit":"per-key","key":""}]}
        .checks[0].key | {"checks":[{"limit":"per-key"}]}
        .checks | {"checks":[]}
         | "x"
    "#;
    for [field, decision] in rows(table) {
        let decision = decision.replace("GOOD", good);
        let body = format!(r#"{{"decisions":[{{"checks":[{good}],"peek":true}},{decision}]}}"#);
        let answer = ask(port, DECIDE, HOST, &body);
        let field = format!("decisions[1]{field}");
        assert_eq!(answer["verdicts"][1]["field"], field, "{answer}");
        assert!(answer["verdicts"][0].get("field").is_none(), "{answer}");
    }
    let settle = format!(
        r#"{{"settles":[{},{{"limit":"no","key":"k","receipt":"r","units":0}}]}}"#,
        r#"{"limit":"per-key","key":"k","receipt":"r","units":0}"#
    );
    let answer = ask(port, "POST /v1/settle", HOST, &settle);
    assert_eq!(answer["outcomes"][0]["field"], "settles[0].receipt");
    assert_eq!(answer["outcomes"][1]["field"], "settles[1].limit");
    let reset = r#"{"resets":[{"limit":"no","key":"k"}]}"#;
    let answer = ask(admin, "POST /v1/reset", &format!("{HOST}{JSON}"), reset);
    assert_eq!(answer["outcomes"][0]["field"], "resets[0].limit");
}
