//! Quotas that a trusted source grants: by whom, up to what, and that nobody else can.

use serde_json::{Value, json};
use sluicegate_tests::token::{jwt_authn, token};

use super::support::{Chain, Policy, filters, number, plugin};

/// One unit an hour, and up to five for whoever is granted more.
fn policy(store: &str) -> String {
    let window = "algorithm: sliding_window, windows: [{ quota: 1, per: 1h }]";
    let granted = format!("{window}, quota_from_request: {{ max: 5 }}");
    Policy::on(store).limit("tenant", &granted).text()
}

/// With a quota from this source, and this filter before ours.
async fn chain(quota: Value, filter: Value) -> Chain {
    let rules = json!([{
        "name": "tenants", "when_unavailable": "deny", "reply": { "on_admitted": true },
        "checks": [{ "limit": "tenant", "key": [{ "header": "x-tenant" }], "quota": quota }],
    }]);
    let before = |config: &mut Value| filters(config).insert(0, filter);
    Chain::with(policy, |envoy| envoy.plugin(plugin(rules)).patch(before)).await
}

/// The status, and the quota that counted.
async fn ask(chain: &Chain, tenant: &str, more: &[(&str, &str)]) -> (u16, u64) {
    let fields = [&[("x-tenant", tenant)], more].concat();
    let answer = chain.envoy.get("/", &fields).await;
    match answer.status().as_u16() {
        status @ (200 | 429) => (status, number(&answer, "x-ratelimit-limit")),
        status => (status, 0),
    }
}

#[tokio::test]
async fn a_verified_claim_grants_a_quota_up_to_the_policys_maximum() {
    let quota = json!({ "jwt": { "payload": "payload", "claim": ["plan", "quota"] } });
    let chain = chain(quota, jwt_authn()).await;
    let bearer = |quota: Value| {
        let claims = json!({ "iss": "issuer", "plan": { "quota": quota } });
        format!("Bearer {}", token(&claims))
    };
    let three = bearer(json!(3));
    for remaining in [2, 1, 0] {
        let answer = ask(&chain, "gold", &[("authorization", &three)]).await;
        assert_eq!(answer, (200, 3), "{remaining} left");
    }
    assert_eq!(
        ask(&chain, "gold", &[("authorization", &three)]).await,
        (429, 3)
    );
    // A cached denial under one quota says nothing about another.
    let five = bearer(json!(5));
    assert_eq!(
        ask(&chain, "gold", &[("authorization", &five)]).await,
        (200, 5)
    );
    assert_eq!(
        ask(&chain, "gold", &[("authorization", &three)]).await,
        (429, 3)
    );

    // Whatever is not a number from 1 to 5 is as if nothing was said.
    for (index, quota) in [
        json!(6),
        json!(0),
        json!(-1),
        json!(2.5),
        json!("many"),
        json!([3]),
        json!(null),
    ]
    .into_iter()
    .enumerate()
    {
        let (tenant, bearer) = (format!("tenant-{index}"), bearer(quota.clone()));
        let answer = ask(&chain, &tenant, &[("authorization", &bearer)]).await;
        assert_eq!(answer, (200, 1), "{quota}");
        assert_eq!(
            ask(&chain, &tenant, &[("authorization", &bearer)]).await,
            (429, 1)
        );
    }
    assert_eq!(ask(&chain, "none", &[]).await, (200, 1));
    // Of those only 6 came as far as the sidecar, once by each question that reached the store.
    let refused = r#"sluicegate_quota_requests_refused_total{limit="tenant"}"#;
    assert!((1.0..=2.0).contains(&chain.sidecar.metric(refused).await));

    // What a client writes itself: headers, and a token that the issuer did not sign.
    let forged = [
        ("quota", "5"),
        ("x-quota", "5"),
        ("x-ratelimit-limit", "5"),
        ("plan", "{\"quota\":5}"),
    ];
    assert_eq!(ask(&chain, "forger", &forged).await, (200, 1));
    assert_eq!(ask(&chain, "forger", &forged).await, (429, 1));
    let (head, _) = five.rsplit_once('.').unwrap();
    let unsigned = format!("{head}.AAAA");
    let answer = ask(&chain, "unsigned", &[("authorization", &unsigned)]).await;
    assert_eq!(answer.0, 401);
}

#[tokio::test]
async fn metadata_of_an_earlier_filter_grants_a_quota() {
    let set = json!({
        "name": "envoy.filters.http.set_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{ "metadata_namespace": "tenants", "value": { "grants": { "quota": 2 } } }],
        },
    });
    let quota = json!({ "metadata": { "namespace": "tenants", "name": ["grants", "quota"] } });
    let chain = chain(quota, set).await;
    for status in [200, 200, 429] {
        assert_eq!(ask(&chain, "a", &[]).await, (status, 2));
    }
}
