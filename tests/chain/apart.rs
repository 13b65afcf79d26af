//! Rules that must not affect each other: shadow rules and enforced ones, two plugins in one VM, and a filter for some
//! routes only.

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::upstream;

use super::replies::{Chain, everyone};
use super::support::plugin;

#[tokio::test]
async fn a_shadow_rule_denies_nobody_and_both_sides_count_what_it_would_have_done() {
    let rules = json!([
        { "name": "stricter", "shadow": true,
          "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }], "cost": 2 }] },
        { "name": "r", "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }] }], "when_unavailable": "deny" },
    ]);
    let chain = Chain::start(4, rules, upstream::start().await, |_| {}).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(
            client()
                .get(chain.envoy.url("/"))
                .send()
                .await
                .unwrap()
                .status()
                .as_u16(),
        );
    }
    assert_eq!(
        statuses,
        [200, 200, 200, 200, 429],
        "the shadow takes nothing from the enforced rule"
    );
    let names = [
        "rule=.=stricter;.;limit=.=per-key;.;rule_limit_shadow_admitted",
        "rule=.=stricter;.;limit=.=per-key;.;rule_limit_shadow_denied",
        "rule=.=r;.;limit=.=per-key;.;rule_limit_denied",
        "denied",
    ];
    assert_eq!(chain.envoy.counts(names).await, [2, 3, 1, 1], "{names:?}");
    let metrics = chain.sidecar.metrics().await;
    let sum = |metric: &str, labels: &[&str]| -> f64 {
        let of_metric = metrics.lines().filter(|line| line.starts_with(metric));
        let lines = of_metric.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum()
    };
    for (metric, labels, count) in [
        (
            "sluicegate_shadow_decisions_total",
            ["rule=\"stricter\"", "verdict=\"denied\""],
            3.0,
        ),
        (
            "sluicegate_shadow_decisions_total",
            ["rule=\"stricter\"", "verdict=\"admitted\""],
            2.0,
        ),
        (
            "sluicegate_decisions_total",
            ["limit=\"per-key\"", "verdict=\"shadow_denied\""],
            3.0,
        ),
        (
            "sluicegate_decisions_total",
            ["limit=\"per-key\"", "verdict=\"denied\""],
            1.0,
        ),
    ] {
        assert_eq!(
            sum(metric, &labels),
            count,
            "{metric} {labels:?}: {metrics}"
        );
    }
}

#[tokio::test]
async fn two_plugins_with_different_rules_in_one_vm_are_independent() {
    let patch = |config: &mut Value| {
        let filters = at(config, MANAGER)["http_filters"].as_array_mut().unwrap();
        let mut second = filters[0].clone();
        let inner = &mut second["typed_config"]["config"];
        inner["name"] = json!("other");
        inner["configuration"]["value"] = plugin(
            json!([{ "name": "second", "match": { "path": "/b" },
            "checks": [{ "limit": "per-key", "key": [{ "constant": "second" }] }], "when_unavailable": "deny" }]),
        );
        filters.insert(1, second);
    };
    let rules = everyone(&json!({ "match": { "path": "/a" } }));
    let chain = Chain::start(1, rules, upstream::start().await, patch).await;
    let status = async |path: &str| {
        client()
            .get(chain.envoy.url(path))
            .send()
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    for path in ["/a", "/b"] {
        assert_eq!(
            (status(path).await, status(path).await),
            (200, 429),
            "{path}"
        );
    }
    // They share the counters that have the same name.
    let names = [
        "denied",
        "rule=.=r;.;limit=.=per-key;.;rule_limit_denied",
        "rule=.=second;.;limit=.=per-key;.;rule_limit_denied",
    ];
    assert_eq!(chain.envoy.counts(names).await, [2, 1, 1]);
}

/// F20: Envoy refuses a per-route configuration of a Wasm filter; this is the alternative in `docs/filter.md`.
#[tokio::test]
async fn f20_a_second_filter_that_is_disabled_works_on_the_routes_that_switch_it_on() {
    let patch = |config: &mut Value| {
        let manager = at(config, MANAGER);
        let filters = manager["http_filters"].as_array_mut().unwrap();
        let mut strict = filters[0].clone();
        strict["name"] = json!("sluicegate-strict");
        strict["disabled"] = json!(true);
        let inner = &mut strict["typed_config"]["config"];
        inner["name"] = json!("strict");
        inner["configuration"]["value"] = plugin(json!([{ "name": "strict",
            "checks": [{ "limit": "per-key", "key": [{ "constant": "strict" }], "cost": 2 }],
            "when_unavailable": "deny" }]));
        filters.insert(0, strict);
        let routes = &mut manager["route_config"]["virtual_hosts"][0]["routes"];
        let mut expensive = routes[0].clone();
        expensive["match"] = json!({ "prefix": "/expensive/" });
        expensive["typed_per_filter_config"] = json!({ "sluicegate-strict": {
            "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {} } });
        routes.as_array_mut().unwrap().insert(0, expensive);
    };
    let chain = Chain::start(4, everyone(&json!({})), upstream::start().await, patch).await;
    let mut statuses = Vec::new();
    for path in [
        "/expensive/a",
        "/a",
        "/expensive/a",
        "/expensive/a",
        "/a",
        "/a",
    ] {
        let answer = client().get(chain.envoy.url(path)).send().await.unwrap();
        statuses.push(answer.status().as_u16());
    }
    // The strict plugin admits two; the other admits four of the rest, on every route.
    assert_eq!(statuses, [200, 200, 200, 429, 200, 429]);
    let names = [
        "denied",
        "rule=.=strict;.;rule_decisions",
        "rule=.=strict;.;limit=.=per-key;.;rule_limit_denied",
    ];
    assert_eq!(chain.envoy.counts(names).await, [2, 3, 1]);
}
