//! Every source of key components, with the real filter or listener of Envoy that provides it.

use serde_json::{Value, json};
use sluicegate_tests::client::raw;
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::recorder::Recorder;
use sluicegate_tests::token::{jwt_authn, token};

use super::support::{filters, plugin};

/// An Envoy whose sidecar only records.
pub struct Recorded {
    envoy: Envoy,
    recorder: Recorder,
}

impl Recorded {
    pub async fn start(rules: Value, patch: impl FnOnce(&mut Value)) -> Self {
        let recorder = Recorder::start().await;
        let envoy = Envoy::asking(recorder.port)
            .plugin(plugin(rules))
            .patch(patch)
            .alone()
            .await;
        Self { envoy, recorder }
    }

    /// Sends a request of raw HTTP/1.1 lines and returns the questions that it caused.
    pub async fn asked(&self, lines: &[&str]) -> Vec<String> {
        let request = format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
        raw(self.envoy.port, request.as_bytes()).await;
        self.recorder.asked()
    }
}

/// A rule for all requests with one check for each of these keys.
fn keys(keys: &[Value]) -> Value {
    let checks: Vec<_> = keys
        .iter()
        .map(|key| json!({ "limit": "l", "key": key, "when_missing": { "use": "nobody" } }))
        .collect();
    json!([{ "name": "r", "match": { "path_template": "/v1/{id}/**" }, "checks": checks, "when_unavailable": "deny" }])
}

#[tokio::test]
async fn parts_of_the_request_itself() {
    let rules = keys(&[
        json!([{ "header": "X-Key", "plain": true }, { "cookie": "session", "plain": true }]),
        json!([{ "query": "q", "plain": true }, { "path": true }, { "template": "id" }]),
        json!([{ "method": true }, { "host": true }, { "constant": "c" }]),
    ]);
    let recorded = Recorded::start(rules, |_| {}).await;
    let asked = recorded
        .asked(&[
            "DELETE /v1//vide%6Fs/7?q=a%20b HTTP/1.1",
            "Host: API.example.com:8080",
            "x-KEY: k",
            "cookie: a=b; session=s1",
        ])
        .await;
    assert_eq!(
        asked,
        [
            "l x-key=k;@cookie/session=s1 1",
            "l @query/q=a%20b;@path=/v1/videos/7;@template/id=videos 1",
            "l @method=DELETE;@host=api.example.com;@constant=c 1",
        ]
    );
    let asked = recorded
        .asked(&[
            "GET /v1/x HTTP/1.1",
            "host: a",
            "cookie: session=",
            "x-key:",
        ])
        .await;
    assert_eq!(
        asked[0],
        "l @missing/x-key=nobody;@missing/%40cookie/session=nobody 1".replace("%40", "@")
    );
}

/// The address of a client behind two proxies that sent a forged X-Forwarded-For to the outer one.
const FORWARDED: &str = "x-forwarded-for: 6.6.6.6, 198.51.100.7, 203.0.113.9";

#[tokio::test]
async fn the_clients_address_from_the_peer_or_from_the_right_of_x_forwarded_for() {
    let rules = || {
        keys(&[
            json!([{ "address": {} }]),
            json!([{ "address": { "trusted_hops": 1 } }]),
            json!([{ "address": { "trusted_hops": 2, "ipv4_bits": 24 } }]),
            json!([{ "address": { "trusted_hops": 9 } }]),
        ])
    };
    let request = &["GET /v1/a HTTP/1.1", "host: a", FORWARDED];
    // An edge Envoy appends the peer's address, which is then the last.
    let edge = Recorded::start(rules(), |_| {}).await;
    let asked = edge.asked(request).await;
    assert_eq!(asked[0], "l @address=127.0.0.1 1");
    // For a peer on the loopback address, Envoy appends its own address.
    assert!(
        !FORWARDED.contains(&asked[1][11..asked[1].len() - 2]),
        "{asked:?}"
    );
    assert_eq!(asked[2], "l @address=203.0.113.0 1");
    assert_eq!(asked[3], "l @missing/@address=nobody 1");
    // An Envoy behind a proxy: by default it takes the last entry for the peer itself.
    let inner = Recorded::start(rules(), |config| {
        at(config, MANAGER)["use_remote_address"] = json!(false);
    })
    .await;
    let expected =
        ["203.0.113.9", "203.0.113.9", "198.51.100.0"].map(|ip| format!("l @address={ip} 1"));
    assert_eq!(inner.asked(request).await[..3], expected);
}

#[tokio::test]
async fn an_ipv6_client_is_its_network() {
    // Envoy appends the peer, which is the last.
    let rules = keys(&[json!([{ "address": { "trusted_hops": 2 } }])]);
    let recorded = Recorded::start(rules, |_| {}).await;
    for host in ["1", "ffff:2"] {
        let header = format!("x-forwarded-for: 2001:db8:1:2::{host}");
        let asked = recorded
            .asked(&["GET /v1/a HTTP/1.1", "host: a", &header])
            .await;
        assert_eq!(asked, ["l @address=2001:db8:1:2:: 1"]);
    }
}

#[tokio::test]
async fn claims_of_a_verified_token() {
    let claim =
        |path: Value| json!([{ "jwt": { "payload": "payload", "claim": path }, "plain": true }]);
    let rules = keys(&[
        claim(json!("sub")),
        claim(json!(["tenant", "id"])),
        claim(json!("level")),
        claim(json!("groups")),
    ]);
    let recorded = Recorded::start(rules, |config| filters(config).insert(0, jwt_authn())).await;
    let claims = json!({ "iss": "issuer", "sub": "alice", "tenant": { "id": "t/1" }, "level": 7, "groups": ["a"] });
    let bearer = format!("authorization: Bearer {}", token(&claims));
    assert_eq!(
        recorded
            .asked(&["GET /v1/a HTTP/1.1", "host: a", &bearer])
            .await,
        [
            "l @jwt/payload/sub=alice 1",
            "l @jwt/payload/tenant/id=t/1 1",
            "l @jwt/payload/level:number=7 1",
            "l @missing/@jwt/payload/groups=nobody 1",
        ]
    );
    let without = recorded.asked(&["GET /v1/a HTTP/1.1", "host: a"]).await;
    assert_eq!(without[0], "l @missing/@jwt/payload/sub=nobody 1");
    // A token that the issuer did not sign does not reach the filter.
    let (head, _) = bearer.rsplit_once('.').unwrap();
    let forged = format!("{head}.AAAA");
    assert!(
        recorded
            .asked(&["GET /v1/a HTTP/1.1", "host: a", &forged])
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn any_attribute_of_envoys_by_its_name() {
    let attribute = |name: Value| json!([{ "attribute": name, "plain": true }]);
    let rules = keys(&[
        attribute(json!("request.host")),
        attribute(json!("xds.route_name")),
        attribute(json!(["request", "headers", "x.y"])),
        attribute(json!("no.such.attribute")),
    ]);
    let recorded = Recorded::start(rules, |config| {
        at(
            config,
            &format!("{MANAGER}/route_config/virtual_hosts/0/routes/0"),
        )["name"] = json!("main");
    })
    .await;
    assert_eq!(
        recorded
            .asked(&["GET /v1/a HTTP/1.1", "host: h", "x.y: z"])
            .await,
        [
            "l @attribute/request/host=h 1",
            "l @attribute/xds/route_name=main 1",
            "l @attribute/request/headers/x.y=z 1",
            "l @missing/@attribute/no/such/attribute=nobody 1",
        ]
    );
}

#[tokio::test]
async fn our_own_headers_are_taken_out_of_requests() {
    let recorded = Recorded::start(keys(&[json!([{ "constant": "c" }])]), |_| {}).await;
    let ours = [
        "RateLimit",
        "RateLimit-Policy",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
        "Retry-After-Ms",
    ];
    // On a route with a rule and on one without.
    for path in ["/v1/a", "/other"] {
        let mut fields = ours.map(|name| (name, "1000000")).to_vec();
        fields.push(("x-ratelimit-other", "kept"));
        let echoed = recorded.envoy.get(path, &fields).await;
        let echoed = echoed.text().await.unwrap();
        assert!(!echoed.contains("1000000"), "{echoed}");
        assert!(echoed.contains("x-ratelimit-other: kept"), "{echoed}");
    }
}

/// Requests of a client that hides its identity or pretends to be several: F6, F7, F18 and F20 through a real Envoy.
#[tokio::test]
async fn no_spelling_changes_or_hides_a_clients_key() {
    let part = |part: Value| json!([part]);
    let skipping = |key: Value| json!({ "limit": "l", "key": key, "when_missing": "skip" });
    let rules = json!([{ "name": "r", "match": { "path_template": "/v1/{id}/**" }, "when_unavailable": "deny", "checks": [
        skipping(part(json!({ "cookie": "session", "plain": true }))),
        skipping(part(json!({ "header": "proxy-authorization", "plain": true }))),
        skipping(part(json!({ "header": "x-key", "plain": true }))),
        skipping(part(json!({ "address": { "trusted_hops": 1 } }))),
        skipping(part(json!({ "jwt": { "payload": "payload", "claim": "sub" }, "plain": true }))),
    ] }]);
    let recorded = Recorded::start(rules, |config| {
        let manager = at(config, MANAGER);
        manager["use_remote_address"] = json!(false);
        manager["common_http_protocol_options"] = json!({});
        let filters = filters(config);
        filters.insert(0, jwt_authn());
        let copy = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config";
        filters.insert(0, json!({ "name": "header_to_metadata", "typed_config": { "@type": copy,
            "request_rules": [{ "header": "x-copied", "on_header_present": { "key": "copied", "type": "STRING" } }] } }));
    })
    .await;
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!({ "a": deep });
    }
    let claims = json!({ "iss": "issuer", "sub": "alice", "deep": deep });
    let bearer = token(&claims);
    for (cookie, scheme, forwarded, copied) in [
        ("session=abc", "Bearer", "2001:db8::1", "a"),
        ("session=%61bc", "bearer", "[2001:db8::1]", "\u{ff}"),
        (
            "session=\"\\141bc\"",
            "BEARER ",
            "2001:db8::1%eth0",
            "\u{ff}\u{ff}",
        ),
    ] {
        let asked = recorded
            .asked(&[
                "GET /v1/a HTTP/1.1",
                "host: a",
                &format!("cookie: {cookie}"),
                &format!("authorization: Bearer {bearer}"),
                &format!("proxy-authorization: {scheme} t"),
                &format!("x-forwarded-for: {forwarded}"),
                &format!("x-copied: {copied}"),
                "x-key: k",
                "x_key: k",
            ])
            .await;
        assert_eq!(
            asked,
            [
                "l @cookie/session=abc 1",
                "l proxy-authorization=bearer%20t 1",
                "l x-key=k 1",
                "l @address=2001:db8:: 1",
                "l @jwt/payload/sub=alice 1",
            ]
        );
    }
    for line in ["x_key: k", "x-forwarded-for: nonsense"] {
        assert!(
            recorded
                .asked(&["GET /v1/a HTTP/1.1", "host: a", line])
                .await
                .is_empty(),
            "{line}"
        );
    }
    let twice =
        b"GET /v1/a HTTP/1.1\r\nhost: a\r\nx-key: mine\r\nx-key: other\r\nconnection: close\r\n\r\n";
    assert_eq!(raw(recorded.envoy.port, twice).await, Some(400));
    assert!(recorded.recorder.asked().is_empty());
    let counts = [
        ("refused_ambiguous_part", 2),
        ("refused_unreadable_part", 1),
    ];
    recorded.envoy.counts(&counts).await;
}
