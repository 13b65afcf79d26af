//! What a sidecar tells of trouble on our side: in its log, on `/readyz`, in its metrics, to clients.

use serde_json::json;
use sluicegate_tests::ask::logs;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Chain, per_key, plugin, policy, take};

const UNKNOWN: &str = "sluicegate_unknown_limits";

/// How often the log has these words.
fn lines(sidecar: &Sidecar, words: &str) -> usize {
    sidecar.log().matches(words).count()
}

/// Newcomers' finding 5: everything was calm while everybody got 503.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_filters_ask_for_and_the_policy_does_not_have_is_told_loudly() {
    let without = |url: &str| policy(url, "sliding_log", 50, "1h").replace("per-key", "by-key");
    let chain = Chain::with(without, |envoy| envoy.plugin(plugin(per_key("deny")))).await;
    let (sidecar, url) = (&chain.sidecar, chain.redis.url());
    let answer = chain.get("/", "alice").await;
    assert_eq!(answer.status(), 503);
    let body = answer.text().await.unwrap();
    assert!(body.contains("the rate limiter is misconfigured"), "{body}");
    sidecar.reaches(UNKNOWN, 1.0).await;
    let ready = sidecar.readyz().await;
    let says = "requests ask for limits that the policy does not have: [\"per-key\"]";
    assert!(
        ready.starts_with("ready") && ready.contains(says),
        "{ready}"
    );
    assert_eq!(chain.status("/", "bob").await, 503);
    let asked_for = "requests ask for the limit \"per-key\"";
    logs(sidecar, asked_for).await;
    assert_eq!(lines(sidecar, asked_for), 1, "{}", sidecar.log());
    // A person who looks for a limit that does not exist is no trouble.
    let peek = json!({ "checks": [{ "limit": "other", "key": "k" }], "peek": true });
    sidecar.answer(json!([peek])).await;
    assert_eq!(sidecar.metric(UNKNOWN).await, 1.0);
    // Back, and with another algorithm: the counts are others.
    let text = policy(&url, "fixed_window", 60, "1h");
    std::fs::write(&sidecar.policy, text).unwrap();
    eventually("it decides again", async || {
        chain.status("/", "alice").await == 200
    })
    .await;
    assert_eq!(sidecar.metric(UNKNOWN).await, 0.0);
    assert!(!sidecar.readyz().await.contains("ask for limits"));
}

/// What filters ask for is told at once, and answered for another minute, in which they may get other rules.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_used_and_a_reload_removed_is_told_and_still_answered() {
    let policy = |url: &str| policy(url, "sliding_log", 2, "1h");
    let chain = Chain::with(policy, |envoy| envoy.plugin(plugin(per_key("deny")))).await;
    assert_eq!(chain.status("/", "alice").await, 200);
    let before = std::fs::read_to_string(&chain.sidecar.policy).unwrap();
    std::fs::write(&chain.sidecar.policy, before.replace("per-key", "by-key")).unwrap();
    let sidecar = &chain.sidecar;
    logs(
        sidecar,
        "policy reloaded: per-key renamed to by-key, whose counts start at zero",
    )
    .await;
    let gone = "the new policy does not have a limit that requests have asked for";
    logs(sidecar, gone).await;
    for status in [200, 429] {
        assert_eq!(chain.status("/", "alice").await, status);
    }
}

/// Finding 26.
#[tokio::test]
async fn a_reload_logs_what_changed_and_which_counts_start_at_zero() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 20, "1h")).await;
    let write = |text: String| std::fs::write(&sidecar.policy, text).unwrap();
    write(policy("memory", "sliding_log", 40, "1h"));
    logs(&sidecar, "policy reloaded: per-key: quota 20 -> 40").await;
    write(policy("memory", "fixed_window", 40, "1h"));
    logs(
        &sidecar,
        "now fixed_window 40 per 1h, whose counts start at zero",
    )
    .await;
    sidecar.signal("HUP");
    logs(&sidecar, "SIGHUP: reading the policy file").await;
}

/// Findings 6 and 7.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_sidecar_says_once_that_its_store_is_away_and_that_it_has_no_share() {
    let mut redis = Redis::start().await;
    redis.kill();
    let sidecar = Sidecar::alone(&policy(&redis.url(), "sliding_log", 5, "1h")).await;
    let no_share = "this sidecar has no share yet and gives no verdict";
    sidecar.reports(no_share).await;
    logs(&sidecar, no_share).await;
    redis.restart().await;
    logs(&sidecar, "the store is back after").await;
    sidecar.knows_of(1).await;
    assert_eq!(take(&sidecar, "per-key", "k").await["outcome"], "admitted");
    assert_eq!(lines(&sidecar, "store call failed"), 1, "{}", sidecar.log());
    assert_eq!(lines(&sidecar, "the store is back"), 1);
    // With a share, another outage is told as what it is.
    redis.kill();
    let share = "by default, this sidecar's share is enforced";
    sidecar.reports(share).await;
    assert!(!sidecar.readyz().await.contains(no_share));
}
