//! Which requests are accepted at all: S17, and the token of S27.

use std::net::SocketAddr;

use sluicegate::server::listen::Address;
use sluicegate::server::{Access, Settings, Token};

use super::{BODY, decide, send, start, start_with};

const RESET: &str = r#"{"resets":[{"limit":"per-key","key":"k"}]}"#;

fn get(port: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let head = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n");
    send(port, &format!("{head}{headers}\r\n"))
}

fn reset(port: SocketAddr, headers: &str) -> (u16, String) {
    let length = RESET.len();
    let head =
        format!("POST /v1/reset HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n");
    send(port, &format!("{head}{headers}\r\n{RESET}"))
}

fn access_to(address: &str, names: &[&str]) -> Access {
    let address: Address = address.parse().unwrap();
    Access::to(
        &address,
        names.iter().map(|&name| name.to_owned()).collect(),
    )
}

async fn admin_with(access: Access) -> SocketAddr {
    let settings = Settings {
        access,
        ..Settings::default()
    };
    start_with(settings).await.1
}

const AT_HOME: &str = "host: 127.0.0.1:9181\r\n";
const JSON: &str = "content-type: application/json\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn s17_a_web_page_cannot_reset_a_limit() {
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
        (
            &format!(
                "{JSON}sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n"
            ),
            403,
        ),
    ] {
        let (given, body) = reset(admin, &format!("{AT_HOME}{headers}"));
        assert_eq!(given, status, "{headers:?}: {body}");
        if status == 415 {
            assert!(body.contains("application/json"), "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_a_page_of_another_host_reads_nothing_and_a_link_to_our_page_works() {
    let admin = admin_with(access_to("127.0.0.1:9181", &["limits.internal"])).await;
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
        ("/page/stream", "host: evil.example\r\n", 421),
        (
            "/metrics",
            "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n",
            403,
        ),
        (
            "/",
            "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n",
            200,
        ),
        (
            "/",
            "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n",
            403,
        ),
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
        let (given, body) = get(admin, path, headers);
        assert_eq!(given, status, "{path} {headers:?}: {body}");
        assert!(status != 421 || body.contains("--allow-host"), "{body}");
    }
    // RFC 9112, 3.2.2: the request's target takes precedence over Host.
    let head =
        "GET http://evil.example/v1/top HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(send(admin, head).0, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_off_loopback_any_host_is_served_unless_names_were_given() {
    let any = admin_with(access_to("0.0.0.0:9181", &[])).await;
    assert_eq!(get(any, "/v1/top", "host: sidecar:9181\r\n").0, 200);
    let named = admin_with(access_to("0.0.0.0:9181", &["sidecar"])).await;
    assert_eq!(get(named, "/v1/top", "host: sidecar:9181\r\n").0, 200);
    assert_eq!(get(named, "/v1/top", "host: evil.example\r\n").0, 421);
    assert_eq!(get(named, "/readyz", "host: evil.example\r\n").0, 421);
    assert_eq!(get(named, "/readyz", "host: 10.1.2.3:9181\r\n").0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_no_page_is_answered_on_the_port_for_decisions_and_filters_and_curl_are() {
    let (port, _) = start().await;
    let length = format!("host: sluicegate\r\ncontent-length: {}\r\n", BODY.len());
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
        let (given, body) = decide(port, &format!("{length}{headers}"), BODY);
        assert_eq!(given, status, "{headers:?}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s27_a_token_protects_all_but_the_probes() {
    let mut access = access_to("0.0.0.0:9181", &[]);
    access.token = Token::new("t0ken".to_owned());
    let admin = admin_with(access.clone()).await;
    let host = "host: sidecar\r\n";
    let bearer = "authorization: Bearer t0ken\r\n";
    // `anyone:t0ken`, as a browser sends it once its user was asked.
    let basic = "authorization: Basic YW55b25lOnQwa2Vu\r\n";
    for path in ["/", "/page/page.js", "/metrics", "/v1/top", "/v1/overrides"] {
        let (status, body) = get(admin, path, host);
        assert_eq!(status, 401, "{path}: {body}");
        for wrong in [
            "Bearer t0ke",
            "Bearer t0kenn",
            "Bearer",
            "Basic dDBrZW4=",
            "t0ken",
        ] {
            let headers = format!("{host}authorization: {wrong}\r\n");
            assert_eq!(get(admin, path, &headers).0, 401, "{path}: {wrong}");
        }
        for right in [bearer, basic] {
            assert_eq!(get(admin, path, &format!("{host}{right}")).0, 200, "{path}");
        }
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(admin, path, host).0, 200, "{path}");
    }
    assert_eq!(reset(admin, &format!("{host}{JSON}")).0, 401);
    assert_eq!(reset(admin, &format!("{host}{JSON}{bearer}")).0, 200);
    let head = format!("GET /metrics HTTP/1.1\r\nconnection: close\r\n{host}\r\n");
    assert!(!send(admin, &head).1.contains("t0ken"));

    access.open_metrics = true;
    let admin = admin_with(access).await;
    assert_eq!(get(admin, "/metrics", host).0, 200);
    assert_eq!(get(admin, "/v1/top", host).0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn s27_without_a_token_nothing_can_be_changed_from_elsewhere() {
    let admin = admin_with(access_to("0.0.0.0:9181", &[])).await;
    let (status, body) = reset(admin, &format!("host: sidecar\r\n{JSON}"));
    assert_eq!(status, 403);
    assert!(body.contains("SLUICEGATE_ADMIN_TOKEN"), "{body}");
    assert_eq!(get(admin, "/v1/top", "host: sidecar\r\n").0, 200);
    assert_eq!(get(admin, "/v1/overrides", "host: sidecar\r\n").0, 403);
}
