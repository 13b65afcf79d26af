//! Rules that must not notice each other: those in the shadow and those that are enforced, and two plugins in one VM.

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::upstream;

use crate::replies::{Chain, everyone};
use crate::support::plugin;

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
        "rule.stricter.limit.per-key.shadow_admitted",
        "rule.stricter.limit.per-key.shadow_denied",
        "rule.r.limit.per-key.denied",
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
async fn two_plugins_with_different_rules_in_one_vm_do_not_meet() {
    let patch = |config: &mut Value| {
        let filters = at(config, MANAGER)["http_filters"].as_array_mut().unwrap();
        let mut second = filters[0].clone();
        let inner = &mut second["typed_config"]["config"];
        inner["name"] = json!("other");
        inner["configuration"]["value"] = plugin(json!([{ "name": "r", "match": { "path": "/b" },
            "checks": [{ "limit": "per-key", "key": [{ "constant": "second" }] }], "when_unavailable": "deny" }]));
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
    assert_eq!(chain.envoy.counted("denied").await, 1);
    assert_eq!(chain.envoy.stat("wasmcustom.other.denied").await, 1);
}
