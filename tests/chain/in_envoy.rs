//! A denial that the filter repeats by itself, and the labels of its counters in Envoy.

use sluicegate_tests::client::get;
use sluicegate_tests::process::eventually;

use super::support::{Chain, number, per_key, plugin, policy};

const QUOTA: u64 = 5;
/// Denials after the first: the filter answers them from its cache.
const REPEATED: u64 = 20;
/// As Prometheus reads it from Envoy, with the `stats_tags` of `envoy/envoy.yaml`.
const DENIED: &str = r#"sluicegate_rule_limit_denied{rule="per-key",limit="per-key"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_denial_needs_no_callout_and_is_counted_by_rule_and_limit() {
    let chain = Chain::start(
        |url| policy(url, "sliding_log", QUOTA, "1h") + "denial_ttl: 60s\n",
        plugin(per_key("deny")),
    )
    .await;
    for _ in 0..QUOTA {
        assert_eq!(chain.status("/", "alice").await, 200);
    }
    let denied = chain.get("/", "alice").await;
    assert_eq!(denied.status(), 429);
    assert_eq!(number(&denied, "x-ratelimit-limit"), QUOTA);
    assert!(number(&denied, "retry-after") > 3_000, "{denied:?}");
    let callouts = "cluster.sluicegate.upstream_rq_total";
    // The verdicts so far were asked for. (A callout may also report what the filter denied by itself, once a second.)
    assert!(chain.envoy.stat(callouts).await > QUOTA);
    chain.sidecar.signal("STOP");
    for _ in 0..REPEATED {
        assert_eq!(chain.status("/", "alice").await, 429);
    }
    // Only a sidecar can decide on another key.
    assert_eq!(chain.status("/", "bob").await, 503);
    chain.sidecar.signal("CONT");
    let statistics = chain.envoy.admin("/stats/prometheus");
    eventually("the denials are counted", async || {
        let (_, text) = get(&statistics).await;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(DENIED));
        lines
            .next_back()
            .and_then(|count| count.trim().parse().ok())
            == Some(REPEATED + 1)
    })
    .await;
    chain.envoy.is_well().await;
}
