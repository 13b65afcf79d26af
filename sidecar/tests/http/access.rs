//! Which requests are accepted at all: S17, and the token of S27.

use std::net::SocketAddr;

use sluicegate::server::Token;

use super::{Answer, BODY, DECIDE, HOST, JSON, access_to, admin_with, ask, start};
use crate::support::{has, lacks};

const RESET: &str = r#"{"resets":[{"limit":"per-key","key":"k"}]}"#;

fn get(port: SocketAddr, path: &str, headers: &str) -> u16 {
    ask(port, &format!("GET {path}"), headers, "").status
}

fn reset(port: SocketAddr, headers: &str) -> Answer {
    ask(port, "POST /v1/reset", headers, RESET)
}

/// What a browser says of a link on another site's page that leads here, or of a frame in it.
fn navigation(to: &str) -> String {
    format!("sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: {to}\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_cannot_reset_a_limit() {
    let admin = admin_with(access_to("127.0.0.1:9181", &[])).await;
    let ours = "origin: http://127.0.0.1:9181\r\n";
    for (headers, status) in [
        (JSON, 200),
        ("content-type: Application/JSON; charset=utf-8\r\n", 200),
        (&format!("{JSON}{ours}sec-fetch-site: same-origin\r\n"), 200),
        // What a page can send without a preflight request.
        ("", 415),
        ("content-type: text/plain\r\n", 415),
        ("content-type: application/x-www-form-urlencoded\r\n", 415),
        (&format!("{JSON}origin: http://evil.example\r\n"), 403),
        (&format!("{JSON}origin: null\r\n"), 403),
        (&format!("{JSON}origin: http://127.0.0.1:80\r\n"), 403),
        (&format!("{JSON}sec-fetch-site: cross-site\r\n"), 403),
        // A form that navigates to a page.
        (&format!("{JSON}{}", navigation("document")), 403),
    ] {
        let answer = reset(admin, &format!("host: 127.0.0.1:9181\r\n{headers}"));
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
        assert!(status != 415 || answer.body.contains("application/json"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_host_reads_nothing_and_a_link_to_our_page_works() {
    let admin = admin_with(access_to("127.0.0.1:9181", &["limits.internal"])).await;
    let script = "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n";
    for (path, headers, status) in [
        ("/v1/top", "host: 127.0.0.1:9181\r\n", 200),
        ("/v1/top", "host: 127.8.9.1\r\n", 200),
        ("/v1/top", "host: localhost:1234\r\n", 200),
        ("/v1/top", "host: LocalHost\r\n", 200),
        ("/v1/top", "host: [::1]:9181\r\n", 200),
        ("/v1/top", "host: limits.internal:80\r\n", 200),
        // DNS rebinding: an attacker's name that now resolves to 127.0.0.1.
        ("/v1/top", "host: evil.example:9181\r\n", 421),
        ("/v1/top", "host: 0.0.0.0:9181\r\n", 421),
        ("/v1/top", "host: 127.0.0.1.evil.example\r\n", 421),
        ("/v1/top", "host: localhost.evil.example\r\n", 421),
        ("/v1/top", "host:\r\n", 421),
        ("/", "host: evil.example\r\n", 421),
        ("/metrics", "host: evil.example\r\n", 421),
        ("/page/snapshot", "host: evil.example\r\n", 421),
        ("/metrics", &format!("{HOST}{script}"), 403),
        ("/", &format!("{HOST}{}", navigation("document")), 200),
        ("/", &format!("{HOST}{}", navigation("iframe")), 403),
        // A kubelet may probe by any address of the pod.
        ("/readyz", "host: 10.1.2.3:9181\r\n", 200),
        ("/readyz", "host: [fd00::1]:9181\r\n", 200),
        ("/healthz", "host: 10.1.2.3:9181\r\n", 200),
        // A probe by name gets no further than other requests: `/readyz` quotes the policy file.
        ("/readyz", "host: limits.internal\r\n", 200),
        ("/readyz", "host: evil.example\r\n", 421),
        ("/readyz", "host: 10.1.2.3.evil.example\r\n", 421),
        ("/healthz", "host: evil.example:9181\r\n", 421),
    ] {
        let answer = ask(admin, &format!("GET {path}"), headers, "");
        assert_eq!(answer.status, status, "{path} {headers:?}");
        assert!(status != 421 || answer.body.contains("--allow-host"));
    }
    // RFC 9112, 3.2.2: the request's target takes precedence over Host.
    let target = "GET http://evil.example/v1/top";
    assert_eq!(ask(admin, target, "host: localhost\r\n", "").status, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn off_loopback_any_host_is_served_unless_names_were_given() {
    let any = admin_with(access_to("0.0.0.0:9181", &[])).await;
    assert_eq!(get(any, "/v1/top", "host: sidecar:9181\r\n"), 200);
    let named = admin_with(access_to("0.0.0.0:9181", &["sidecar"])).await;
    assert_eq!(get(named, "/v1/top", "host: sidecar:9181\r\n"), 200);
    assert_eq!(get(named, "/v1/top", "host: evil.example\r\n"), 421);
    assert_eq!(get(named, "/readyz", "host: evil.example\r\n"), 421);
    assert_eq!(get(named, "/readyz", "host: 10.1.2.3:9181\r\n"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_is_answered_on_the_port_for_decisions_and_filters_and_curl_are() {
    let (port, _) = start().await;
    for (headers, status) in [
        // The filter's, and what curl -d says.
        (JSON, 200),
        ("content-type: application/x-www-form-urlencoded\r\n", 200),
        ("", 200),
        ("content-type: text/plain;charset=UTF-8\r\n", 415),
        ("content-type: multipart/form-data; boundary=x\r\n", 415),
        ("origin: http://evil.example\r\n", 403),
        ("origin: http://sluicegate\r\n", 403),
        ("sec-fetch-site: cross-site\r\n", 403),
    ] {
        let all = format!("host: sluicegate\r\n{headers}");
        let answer = ask(port, DECIDE, &all, BODY);
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_protects_all_but_the_probes() {
    let mut access = access_to("0.0.0.0:9181", &[]);
    access.token = Token::new("t0ken".to_owned());
    let admin = admin_with(access.clone()).await;
    let host = "host: sidecar\r\n";
    let bearer = "authorization: Bearer t0ken\r\n";
    // `anyone:t0ken`, as a browser sends it once its user was asked.
    let basic = "authorization: Basic YW55b25lOnQwa2Vu\r\n";
    for path in ["/", "/page/page.js", "/metrics", "/v1/top", "/v1/overrides"] {
        assert_eq!(get(admin, path, host), 401, "{path}");
        let wrong = "Bearer t0ke|Bearer t0kenn|Bearer|Basic dDBrZW4=|t0ken";
        for wrong in wrong.split('|') {
            let headers = format!("{host}authorization: {wrong}\r\n");
            assert_eq!(get(admin, path, &headers), 401, "{path}: {wrong}");
        }
        for right in [bearer, basic] {
            assert_eq!(get(admin, path, &format!("{host}{right}")), 200, "{path}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(admin, path, host), 200, "{path}");
    }
    assert_eq!(reset(admin, &format!("{host}{JSON}")).status, 401);
    assert_eq!(reset(admin, &format!("{host}{JSON}{bearer}")).status, 200);
    lacks(&ask(admin, "GET /metrics", host, "").body, "t0ken");

    access.open_metrics = true;
    let admin = admin_with(access).await;
    assert_eq!(get(admin, "/metrics", host), 200);
    assert_eq!(get(admin, "/v1/top", host), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_nothing_can_be_changed_from_elsewhere() {
    let admin = admin_with(access_to("0.0.0.0:9181", &[])).await;
    let answer = reset(admin, &format!("host: sidecar\r\n{JSON}"));
    assert_eq!(answer.status, 403);
    has(&answer.body, "SLUICEGATE_ADMIN_TOKEN");
    assert_eq!(get(admin, "/v1/top", "host: sidecar\r\n"), 200);
    assert_eq!(get(admin, "/v1/overrides", "host: sidecar\r\n"), 403);
    let digits = "/v1/subjects/8aca0dd300d2436b96f9";
    assert_eq!(get(admin, digits, "host: sidecar\r\n"), 403);
}
