//! Envoy's access log for requests that were denied, refused or admitted without a verdict.

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::upstream;

use super::replies::{Chain, everyone};

/// The lines of Envoy's access log so far.
pub fn access_log(envoy: &Envoy) -> Vec<Value> {
    let log = envoy.log();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// F15: the log contained only `sluicegate`. F11: it did not tell a sidecar that hangs from one that is down.
#[tokio::test]
async fn envoys_access_log_says_who_was_denied_and_why() {
    let rules = everyone(&json!({ "name": "per-team", "checks": [
        { "limit": "per-key", "key": [{ "header": "x-team" }], "when_missing": "deny" }] }));
    let mut chain = Chain::start(1, rules, upstream::start().await, |_| {}).await;
    let ask = async |team: &str| {
        let request = client().get(chain.envoy.url("/private?token=secret"));
        let request = if team.is_empty() {
            request
        } else {
            request.header("x-team", team)
        };
        request.send().await.unwrap().status().as_u16()
    };
    let mut statuses = vec![ask("a").await, ask("a").await, ask("").await];
    chain.sidecar.signal("STOP");
    statuses.push(ask("b").await);
    chain.sidecar.signal("CONT");
    chain.sidecar.kill();
    statuses.push(ask("c").await);
    assert_eq!(statuses, [200, 429, 403, 503, 503]);
    eventually("five lines", async || access_log(&chain.envoy).len() == 5).await;
    let lines = access_log(&chain.envoy);
    let details: Vec<_> = lines
        .iter()
        .map(|line| line["details"].as_str().unwrap())
        .collect();
    assert_eq!(
        details,
        [
            "via_upstream",
            "sluicegate_denied{rule=per-team,limit=per-key}",
            "sluicegate_missing_part{rule=per-team,limit=per-key}",
            "sluicegate_unavailable{rule=per-team,reason=timeout}",
            "sluicegate_unavailable{rule=per-team,reason=unreachable}",
        ]
    );
    assert!(
        lines.iter().all(|line| line["path"] == "/private"),
        "{lines:?}"
    );
    let counters = ["error_no_answer", "error_unreachable", "error_status"];
    assert_eq!(chain.envoy.counts(counters).await, [1, 1, 0]);
}

#[tokio::test]
async fn envoys_access_log_says_what_was_let_through_unmetered() {
    let rules = everyone(&json!({ "name": "per-team", "when_unavailable": "allow" }));
    let mut chain = Chain::start(1, rules, upstream::start().await, |_| {}).await;
    let ask = async || {
        client()
            .get(chain.envoy.url("/"))
            .send()
            .await
            .unwrap()
            .status()
    };
    assert_eq!(ask().await, 200);
    chain.sidecar.signal("STOP");
    assert_eq!(ask().await, 200);
    chain.sidecar.signal("CONT");
    chain.sidecar.kill();
    assert_eq!(ask().await, 200);
    eventually("three lines", async || access_log(&chain.envoy).len() == 3).await;
    let lines = access_log(&chain.envoy);
    let lines_seen: Vec<_> = lines
        .iter()
        .map(|line| line["sluicegate"].as_str())
        .collect();
    let unmetered = |reason| format!("sluicegate_unmetered{{rule=per-team,reason={reason}}}");
    let (timeout, unreachable) = (unmetered("timeout"), unmetered("unreachable"));
    assert_eq!(
        lines_seen,
        [None, Some(timeout.as_str()), Some(unreachable.as_str())]
    );
    assert!(
        lines.iter().all(|line| line["details"] == "via_upstream"),
        "{lines:?}"
    );
}
