//! The order of an upgrade: sidecars, then filters; and the wrong one.

use serde_json::json;
use sluicegate_tests::process::eventually;
use sluicegate_tests::version::Version;

use super::fleet::{Fleet, QUOTA};

/// Limits whose layout in Redis both versions share.
const KEPT: [&str; 3] = ["log", "window", "fixed"];

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_first_keeps_the_counts_and_loses_nothing() {
    let mut fleet = Fleet::start(Version::Earlier, Version::Earlier, "allow").await;
    let traffic = fleet.traffic();
    for limit in KEPT {
        fleet.admits(limit, QUOTA / 3).await;
    }
    let silent = fleet.replace_sidecar(Version::This).await;
    for limit in KEPT {
        fleet.admits(limit, QUOTA / 3).await;
    }
    fleet.replace_filter(Version::This).await;
    for limit in KEPT {
        fleet.admits(limit, QUOTA - 2 * (QUOTA / 3)).await;
        assert_eq!(fleet.status(limit, "alice").await, 429, "{limit}");
    }
    let (admitted, unavailable, closed) = traffic.stop().await;
    println!(
        "measured: nobody listened for {silent:?}; {admitted} requests got 200, {unavailable} 503, {closed} a closed connection"
    );
    assert!(admitted > 0 && unavailable == 0, "{admitted} {unavailable}");
    assert_eq!(fleet.envoy.vm_deaths().await, 0, "{}", fleet.envoy.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_a_verdict_are_only_those_while_nobody_listens() {
    let mut fleet = Fleet::start(Version::Earlier, Version::Earlier, "deny").await;
    let traffic = fleet.traffic();
    fleet.admits("log", 1).await;
    assert_eq!(traffic.counts().1, 0, "before");
    let silent = fleet.replace_sidecar(Version::This).await;
    fleet.admits("log", 1).await;
    let (before, during, _) = traffic.counts();
    eventually("many more are admitted", async || {
        traffic.counts().0 > before + 100
    })
    .await;
    let (admitted, unavailable, _) = traffic.stop().await;
    println!(
        "measured: nobody listened for {silent:?}; {admitted} requests got 200, {unavailable} 503"
    );
    // One more may have been on its way.
    assert!(unavailable <= during + 1, "{during}, and {unavailable}");
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_first_works_for_what_both_versions_know() {
    let mut fleet = Fleet::start(Version::Earlier, Version::This, "deny").await;
    for limit in KEPT {
        fleet.admits(limit, QUOTA).await;
        assert_eq!(fleet.status(limit, "alice").await, 429, "{limit}");
    }
    fleet.replace_sidecar(Version::This).await;
    for limit in KEPT {
        assert_eq!(fleet.status(limit, "alice").await, 429, "{limit}");
    }
}

/// A request is read strictly: a field that the sidecar does not know might be the one that limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_the_sidecar_does_not_know_refuses_its_decision_alone() {
    for version in [Version::Earlier, Version::This] {
        let fleet = Fleet::start(version, Version::This, "deny").await;
        let check = json!({ "limit": "log", "key": "k" });
        let mut later = check.clone();
        later["of_a_later_version"] = json!(1);
        let both = json!([{ "checks": [later] }, { "checks": [check] }]);
        let answer = fleet.sidecar.answer(both).await;
        let outcomes = [0, 1].map(|at| answer["verdicts"][at]["outcome"].as_str());
        assert_eq!(outcomes[1], Some("admitted"), "{answer}");
        assert_ne!(outcomes[0], Some("admitted"), "{answer}");
    }
}
