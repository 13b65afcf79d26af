//! Rules that must not affect each other: shadow rules and enforced ones, two plugins in one VM, and a filter for some
//! routes only.

use serde_json::{Value, json};
use sluicegate_tests::envoy::{MANAGER, at};

use super::replies::everyone;
use super::support::{Chain, filters, policy, pushed, with_sets};

/// The statuses of requests for these paths.
async fn statuses<const N: usize>(chain: &Chain, paths: [&str; N]) -> [u16; N] {
    let mut statuses = [0; N];
    for (status, path) in statuses.iter_mut().zip(paths) {
        *status = chain.status(path, "").await;
    }
    statuses
}

/// The counter of the filter for a rule and its limit.
fn counter(rule: &str, event: &str) -> String {
    format!("rule=.={rule};.;limit=.=per-key;.;rule_limit_{event}")
}

#[tokio::test]
async fn a_shadow_rule_denies_nobody_and_both_sides_count_what_it_would_have_done() {
    let rules = json!([
        { "name": "stricter", "shadow": true,
          "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }], "cost": 2 }] },
        { "name": "r", "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }] }], "when_unavailable": "deny" },
    ]);
    let chain = Chain::hourly(4, rules).await;
    assert_eq!(
        statuses(&chain, ["/"; 5]).await,
        [200, 200, 200, 200, 429],
        "the shadow takes nothing from the enforced rule"
    );
    let counts = [
        (&*counter("stricter", "shadow_admitted"), 2),
        (&counter("stricter", "shadow_denied"), 3),
        (&counter("r", "denied"), 1),
        ("denied", 1),
    ];
    chain.envoy.counts(&counts).await;
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
        let filters = filters(config);
        let mut second = filters[0].clone();
        let inner = &mut second["typed_config"]["config"];
        inner["name"] = json!("other");
        inner["configuration"]["value"]["rule_sets"] = json!({ "default": "second" });
        filters.insert(1, second);
    };
    let second = json!([{ "name": "second", "match": { "path": "/b" },
        "checks": [{ "limit": "per-key", "key": [{ "constant": "second" }] }], "when_unavailable": "deny" }]);
    let sets = json!({ "s": { "rules": everyone(&json!({ "match": { "path": "/a" } })) },
        "second": { "rules": second } });
    let hourly = |url: &str| with_sets(&policy(url, "sliding_log", 1, "1h"), &sets);
    let chain = Chain::with(hourly, |envoy| envoy.plugin(pushed()).patch(patch)).await;
    for path in ["/a", "/b"] {
        assert_eq!(statuses(&chain, [path; 2]).await, [200, 429], "{path}");
    }
    // They share the counters that have the same name.
    let counts = [
        ("denied", 2),
        (&counter("r", "denied"), 1),
        (&counter("second", "denied"), 1),
    ];
    chain.envoy.counts(&counts).await;
}

/// F20: Envoy refuses a per-route configuration of a Wasm filter; this is the alternative in `docs/matching.md`.
#[tokio::test]
async fn a_second_filter_that_is_disabled_works_on_the_routes_that_switch_it_on() {
    let patch = |config: &mut Value| {
        let manager = at(config, MANAGER);
        let filters = manager["http_filters"].as_array_mut().unwrap();
        let mut strict = filters[0].clone();
        strict["name"] = json!("sluicegate-strict");
        strict["disabled"] = json!(true);
        let inner = &mut strict["typed_config"]["config"];
        inner["name"] = json!("strict");
        inner["configuration"]["value"]["rule_sets"] = json!({ "default": "strict" });
        filters.insert(0, strict);
        let routes = &mut manager["route_config"]["virtual_hosts"][0]["routes"];
        let mut expensive = routes[0].clone();
        expensive["match"] = json!({ "prefix": "/expensive/" });
        expensive["typed_per_filter_config"] = json!({ "sluicegate-strict": {
            "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {} } });
        routes.as_array_mut().unwrap().insert(0, expensive);
    };
    let strict = json!([{ "name": "strict",
        "checks": [{ "limit": "per-key", "key": [{ "constant": "strict" }], "cost": 2 }],
        "when_unavailable": "deny" }]);
    let sets = json!({ "s": { "rules": everyone(&json!({})) }, "strict": { "rules": strict } });
    let hourly = |url: &str| with_sets(&policy(url, "sliding_log", 4, "1h"), &sets);
    let chain = Chain::with(hourly, |envoy| envoy.plugin(pushed()).patch(patch)).await;
    // The strict plugin admits two; the other admits four of the rest, on every route.
    let (a, expensive) = ("/a", "/expensive/a");
    assert_eq!(
        statuses(&chain, [expensive, a, expensive, expensive, a, a]).await,
        [200, 200, 200, 429, 200, 429]
    );
    let counts = [
        ("denied", 2),
        ("rule=.=strict;.;rule_decisions", 3),
        (&counter("strict", "denied"), 1),
    ];
    chain.envoy.counts(&counts).await;
}
