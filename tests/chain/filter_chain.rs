//! The filter beside other filters and options of Envoy: neither may disturb the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::Request;
use serde_json::{Value, json};
use sluicegate_tests::client::{client, get_with};
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream::serve;

use super::support::{Policy, envoy, filters, per_key, pushed, with_sets};

/// One with these rules.
async fn sidecar(rules: &Value) -> Sidecar {
    let policy = Policy::on("memory")
        .window("per-key", "sliding_log", 1, "1h")
        .window("wide", "sliding_log", 1_000, "1h");
    let sets = json!({ "s": { "rules": rules }, "inner": { "rules": per_key("deny") } });
    Sidecar::alone(&with_sets(&policy.text(), &sets)).await
}

/// A rule that takes from the limit `wide` under one key.
fn wide() -> Value {
    json!([{ "name": "wide", "checks": [{ "limit": "wide", "key": [{ "constant": "c" }] }], "when_unavailable": "deny",
        "reply": { "on_admitted": true } }])
}

/// An upstream that counts requests and answers with the length of each one's body.
async fn measuring() -> (u16, Arc<AtomicU64>) {
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let app = Router::new().fallback(async move |request: Request| {
        // Counted at its headers, because an aborted request has reached the upstream too.
        counted.fetch_add(1, Ordering::SeqCst);
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await;
        body.map_or(0, |body| body.len()).to_string()
    });
    (serve(app).await, requests)
}

/// F14: with this option Envoy lets a body pass although the filter has stopped the headers.
#[tokio::test]
async fn a_denied_body_never_reaches_the_upstream_and_an_admitted_one_reaches_it_whole() {
    for stop_iteration in [false, true] {
        let (upstream, reached) = measuring().await;
        let sidecar = sidecar(&per_key("deny")).await;
        let envoy = Envoy::asking(sidecar.port)
            .upstream(upstream)
            .plugin(pushed())
            .patch(|config| {
                let filter = &mut filters(config)[0]["typed_config"]["config"];
                filter["allow_on_headers_stop_iteration"] = json!(stop_iteration);
            })
            .alone()
            .await;
        let body = "x".repeat(300_000);
        for (n, status) in [200, 429, 429].into_iter().enumerate() {
            let request = client().post(envoy.url("/")).header("x-api-key", "k");
            let answer = request.body(body.clone()).send().await.unwrap();
            assert_eq!(answer.status(), status, "{n}, {stop_iteration}");
            if status == 200 {
                assert_eq!(answer.text().await.unwrap(), body.len().to_string());
            }
        }
        assert_eq!(reached.load(Ordering::SeqCst), 1, "{stop_iteration}");
        envoy.is_well().await;
    }
}

/// F19: taking a header out of a request makes Envoy select its route anew, so the filter leaves requests as they are.
#[tokio::test]
async fn a_client_cannot_have_its_route_selected_anew() {
    let sidecar = sidecar(&wide()).await;
    let envoy = Envoy::asking(sidecar.port).plugin(pushed()).patch(|config| {
            let answer = |text: &str| json!({ "status": 200, "body": { "inline_string": text } });
            let routes = "route_config/virtual_hosts/0/routes";
            *at(config, &format!("{MANAGER}/{routes}")) = json!([
                { "match": { "prefix": "/", "headers": [{ "name": "x-internal", "present_match": true }] },
                  "direct_response": answer("internal") },
                { "match": { "prefix": "/" }, "direct_response": answer("public") },
            ]);
            // A filter before ours that changes a header by which routes are selected, without clearing the route cache.
            let header = json!({ "key": "x-internal", "value": "1" });
            filters(config).insert(0, json!({
                "name": "envoy.filters.http.header_mutation",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
                    "mutations": { "request_mutations": [{ "append": { "header": header } }] },
                },
            }));
        }).alone()
    .await;
    for name in [
        "x-harmless",
        "ratelimit",
        "x-ratelimit-limit",
        "retry-after-ms",
    ] {
        let answer = envoy.get("/", &[(name, "1")]).await;
        assert_eq!(answer.text().await.unwrap(), "public", "{name}");
    }
}

/// F20: the outer filter's fields describe a limit that admitted the request, not the one that denied it.
#[tokio::test]
async fn a_denial_by_an_inner_filter_does_not_carry_the_outer_ones_fields() {
    let sidecar = sidecar(&wide()).await;
    let envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .patch(|config| {
            let filters = filters(config);
            let mut inner = filters[0].clone();
            inner["name"] = json!("inner");
            let config = &mut inner["typed_config"]["config"];
            config["configuration"]["value"]["rule_sets"] = json!({ "default": "inner" });
            config["name"] = json!("inner");
            filters.insert(1, inner);
        })
        .alone()
        .await;
    for (status, named) in [(200, "wide"), (429, "per-key"), (429, "per-key")] {
        let answer = envoy.get("/", &[("x-api-key", "k")]).await;
        assert_eq!(answer.status(), status);
        for field in ["ratelimit", "ratelimit-policy"] {
            let values: Vec<_> = answer.headers().get_all(field).iter().collect();
            let [value] = values.as_slice() else {
                panic!("{field}: {values:?}")
            };
            assert!(
                value.to_str().unwrap().contains(named),
                "{field}: {value:?}"
            );
        }
    }
    envoy.is_well().await;
}

/// F5: the questions of concurrent requests exceed the bounds of one body, in decisions, in checks or in bytes.
#[tokio::test(flavor = "multi_thread")]
async fn each_request_gets_its_verdict_however_much_it_asks() {
    let shadow = |n: usize| {
        json!({ "name": format!("shadow-{n}"), "shadow": true,
                "checks": [{ "limit": "wide", "key": [{ "header": "x-api-key" }] }] })
    };
    let check = || json!({ "limit": "wide", "key": [{ "path": true }, { "header": "x-long", "plain": true }] });
    let enforced = |checks: usize| json!({ "name": "r", "checks": (0..checks).map(|_| check()).collect::<Vec<_>>(), "when_unavailable": "deny" });
    let of_shadows: Value = (0..4).map(shadow).chain([enforced(1)]).collect();
    for (rules, long) in [(of_shadows, 10), (json!([enforced(8)]), 240)] {
        let sidecar = sidecar(&rules).await;
        let envoy = envoy(sidecar.port, pushed()).await;
        // While the sidecar is paused, requests queue up.
        sidecar.signal("STOP");
        let mut clients = Vec::new();
        for n in 0..300 {
            let (url, long) = (envoy.url(&format!("/{n}")), "l".repeat(long));
            clients.push(tokio::spawn(async move {
                let fields = [("x-api-key", "k"), ("x-long", long.as_str())];
                get_with(&url, &fields).await.status()
            }));
        }
        eventually("they wait", async || envoy.active().await == 300).await;
        sidecar.signal("CONT");
        for client in clients {
            assert_eq!(client.await.unwrap(), 200);
        }
        envoy
            .counts(&[("admitted", 300), ("error_status", 0)])
            .await;
    }
}
