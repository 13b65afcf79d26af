//! Which requests are accepted at all: S17, and the token of S27.

use std::io::Read;
use std::net::SocketAddr;

use sluicegate::server::Token;

use super::{
    Answer, BODY, DECIDE, HOST, JSON, access_to, admin_with, ask, connect, start, start_for,
};
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

/// What Chromium sends of a page whose name now resolves to this port, and so has its origin: no Origin with a GET, and no
/// `Sec-Fetch-Site`, since the page is not trustworthy. A script cannot remove the rest.
const REBOUND: &str = "connection: keep-alive\r\naccept: */*\r\nuser-agent: Mozilla/5.0\r\naccept-language: en\r\naccept-encoding: gzip, deflate\r\n";

/// The status that a rebound page gets.
fn rebound(port: SocketAddr, target: &str, host: &str) -> u16 {
    let request = format!("{target} HTTP/1.1\r\nhost: {host}\r\n{REBOUND}");
    let mut stream = connect(port, &format!("{request}\r\n"));
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    String::from_utf8_lossy(&head[9..]).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn off_loopback_a_page_reads_nothing_by_a_name_and_programs_are_served_by_any() {
    let any = admin_with(access_to("0.0.0.0:9181", &[])).await;
    assert_eq!(get(any, "/v1/top", "host: sidecar:9181\r\n"), 200);
    for path in [
        "/",
        "/page/snapshot",
        "/metrics",
        "/v1/top",
        "/v1/filters",
        "/readyz",
    ] {
        for evil in [
            "evil.example:9181",
            "evil.example",
            "10.1.2.3.evil.example",
            "",
        ] {
            assert_eq!(
                rebound(any, &format!("GET {path}"), evil),
                421,
                "{path} {evil}"
            );
        }
        // A name is what rebinding needs.
        for ours in ["10.1.2.3:9181", "localhost:9181", "[fd00::1]:9181"] {
            assert_eq!(
                rebound(any, &format!("GET {path}"), ours),
                200,
                "{path} {ours}"
            );
        }
        let prometheus = "host: limits.corp.example:9181\r\naccept-encoding: gzip\r\n";
        assert_eq!(get(any, path, prometheus), 200, "{path}");
    }
    let mut access = access_to("0.0.0.0:9181", &[]);
    access.token = Token::new("t0ken".to_owned());
    // A page does not have it, and a person may come by any name.
    assert_eq!(
        rebound(admin_with(access).await, "GET /", "limits.corp.example"),
        401
    );
    let named = admin_with(access_to("0.0.0.0:9181", &["sidecar"])).await;
    assert_eq!(get(named, "/v1/top", "host: sidecar:9181\r\n"), 200);
    assert_eq!(get(named, "/v1/top", "host: evil.example\r\n"), 421);
    assert_eq!(get(named, "/readyz", "host: evil.example\r\n"), 421);
    assert_eq!(get(named, "/readyz", "host: 10.1.2.3:9181\r\n"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_is_answered_on_the_port_for_decisions_and_filters_and_curl_are() {
    let (port, admin) = start().await;
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
    let announced = "sluicegate-filter: 0.1.0 configuration=2d0f3b8e61a4\r\n";
    for target in [
        "GET /v1/rules",
        "HEAD /v1/rules",
        "GET /v1/openapi.json",
        "GET /nowhere",
    ] {
        for host in ["evil.example:9180", "sluicegate", "127.0.0.1:9180"] {
            let host = format!("{host}\r\n{announced}").trim_end().to_owned();
            assert_eq!(rebound(port, target, &host), 403, "{target} {host}");
        }
    }
    assert_eq!(
        get(
            port,
            "/v1/rules",
            &format!("host: sluicegate\r\n{announced}")
        ),
        200
    );
    let told = ask(admin, "GET /metrics", HOST, "").body;
    assert_eq!(told.matches("sluicegate_filter_info{").count(), 1, "{told}");
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
    let peek = format!("host: sidecar\r\n{JSON}");
    assert_eq!(ask(admin, "POST /v1/peek", &peek, BODY).status, 403);
}

/// Promise 10.
#[tokio::test(flavor = "multi_thread")]
async fn digits_stand_for_a_key_that_no_answer_tells() {
    let (port, admin) = start_for(access_to("127.0.0.1:9181", &[])).await;
    let post = format!("{HOST}{JSON}");
    let key = "@address=192.0.2.77";
    let digits = "83b763ec83ae1ab37e9b";
    let body = BODY.replace(r#""k""#, &format!("{key:?}"));
    for outcome in ["admitted", "denied"] {
        has(&ask(port, DECIDE, &post, &body).body, outcome);
    }
    has(&ask(admin, "GET /v1/top", HOST, "").body, digits);
    let mut told = String::new();
    for path in [
        &format!("/v1/subjects/{digits}"),
        "/v1/top",
        "/v1/filters",
        "/v1/overrides",
        "/metrics",
        "/page/snapshot",
    ] {
        told += &ask(admin, &format!("GET {path}"), HOST, "").body;
    }
    let by_digits = BODY.replace(r#""k""#, &format!("{digits:?}"));
    let peek = || ask(admin, "POST /v1/peek", &post, &by_digits).body;
    let reset = format!(r#"{{"resets":[{{"limit":"per-key","subject":"{digits}"}}]}}"#);
    let set = format!(r#"{{"limit":"per-key","subject":"{digits}","quota":5}}"#);
    told += &peek();
    has(&told, r#""outcome":"denied""#);
    let answer = ask(admin, "POST /v1/reset", &post, &reset).body;
    has(&answer, r#""held":true"#);
    let looked = peek() + &peek();
    assert_eq!(
        looked.matches(r#""remaining":1"#).count(),
        2,
        "it takes nothing: {looked}"
    );
    told += &(answer + &looked + &ask(admin, "PUT /v1/overrides", &post, &set).body);
    lacks(&told, "192.0.2.77");
    let unknown = by_digits.replace(digits, "00000000000000000000");
    let answer = ask(admin, "POST /v1/peek", &post, &unknown).body;
    has(&answer, "no key with these 20 digits");
    let unknown = reset.replace(digits, "00000000000000000000");
    let answer = ask(admin, "POST /v1/reset", &post, &unknown).body;
    has(&answer, "no key with these 20 digits");
}

/// A decision could not have them.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_empty_or_too_long_are_refused_wherever_they_are_sent() {
    let (port, admin) = start_for(access_to("127.0.0.1:9181", &[])).await;
    let post = format!("{HOST}{JSON}");
    for (key, code) in [
        (String::new(), "empty_key"),
        ("k".repeat(513), "key_too_long"),
    ] {
        let named = format!(r#""limit":"per-key","key":"{key}""#);
        let receipt = "0".repeat(32);
        for (port, target, body) in [
            (
                port,
                DECIDE,
                format!(r#"{{"decisions":[{{"checks":[{{{named}}}]}}]}}"#),
            ),
            (
                port,
                "POST /v1/settle",
                format!(r#"{{"settles":[{{{named},"receipt":"{receipt}","units":0}}]}}"#),
            ),
            (
                admin,
                "POST /v1/reset",
                format!(r#"{{"resets":[{{{named}}}]}}"#),
            ),
            (
                admin,
                "PUT /v1/overrides",
                format!("{{{named},\"blocked\":true}}"),
            ),
            (admin, "DELETE /v1/overrides", format!("{{{named}}}")),
        ] {
            let answer = ask(port, target, &post, &body).body;
            has(&answer, &format!(r#""code":"{code}""#));
        }
        // In a report it would make every request that carries it fail.
        let report = format!(r#"{{"decisions":[],"denied":[{{{named},"count":7}}]}}"#);
        assert_eq!(ask(port, DECIDE, &post, &report).status, 200);
    }
    let both = r#"{"resets":[{"limit":"per-key","key":"k","subject":"83b763ec83ae1ab37e9b"}]}"#;
    has(&reset_of(admin, both), "exactly one of");
    has(
        &reset_of(admin, r#"{"resets":[{"limit":"per-key","subject":"k"}]}"#),
        "20 hexadecimal",
    );
    let top = ask(admin, "GET /v1/top", HOST, "").body;
    has(&top, r#""denied_total":0"#);
    let long = "l".repeat(900_000);
    let body = BODY.replace("per-key", &long);
    let answer = ask(port, DECIDE, &post, &body).body;
    assert!(answer.len() < 1_000, "{} bytes", answer.len());
}

fn reset_of(admin: SocketAddr, body: &str) -> String {
    ask(admin, "POST /v1/reset", &format!("{HOST}{JSON}"), body).body
}
