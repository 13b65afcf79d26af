//! Two sidecars on one store: a change on one is felt on the other, and outlives both.

use std::time::Duration;

use serde_json::json;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::super::support::{Policy, peek, take};
use super::{admitted, list, remove, rfc3339_in, set, shows};

/// Two sidecars on one store, with denials that are held for a minute: only what voids them lets a change be felt.
pub struct Fleet {
    pub sidecars: [Sidecar; 2],
}

impl Fleet {
    pub async fn start(store: &str) -> Self {
        let policy = Policy::on(store)
            .line("denial_ttl: 1m")
            .window("per-key", "sliding_log", 5, "1h")
            .window("rate", "token_bucket", 5, "1h");
        let one = Sidecar::alone(&policy.text()).await;
        let other = Sidecar::alone(&policy.text()).await;
        Self {
            sidecars: [one, other],
        }
    }
}

/// Waits until the sidecar decides so. docs/overrides.md promises a second; a machine that stands still may take longer, but
/// no denial that is held ends by then.
async fn felt(sidecar: &Sidecar, what: &str, limit: &str, key: &str, outcome: &str) {
    eventually(what, async || {
        peek(sidecar, limit, key).await["outcome"] == outcome
    })
    .await;
}

async fn a_fleet_obeys(fleet: &mut Fleet) {
    let [here, there] = &fleet.sidecars;
    for limit in ["per-key", "rate"] {
        assert_eq!(admitted(here, limit, "k", 6).await, 5);
        // Both hold the denial now, for a minute.
        for sidecar in [here, there] {
            assert_eq!(admitted(sidecar, limit, "k", 2).await, 0);
        }
        let raised = json!({ "quota": 8, "reason": "INC-7", "by": "ann" });
        let answer = set(here, limit, "k", raised).await;
        shows(&answer, &json!({ "replaced": false }));
        shows(&answer["override"], &json!({ "state": "in_force" }));
        let at_once = take(here, limit, "k").await;
        assert_eq!(at_once["outcome"], "admitted");
        felt(there, "a raised quota", limit, "k", "admitted").await;
        // Five were taken before and one just now: counts are kept.
        assert_eq!(admitted(there, limit, "k", 5).await, 2, "{limit}");
        assert_eq!(admitted(here, limit, "other", 7).await, 5, "nobody else's");

        set(there, limit, "k", json!({ "unlimited": true })).await;
        felt(here, "unlimited", limit, "k", "admitted").await;
        assert_eq!(admitted(here, limit, "k", 20).await, 20);
        set(here, limit, "k", json!({ "blocked": true })).await;
        felt(there, "blocked", limit, "k", "denied").await;
        // Clients do not see when it ends: clients are to wait for the longest window.
        let expected = json!({ "outcome": "denied", "retry_after_ms": 3_600_000 });
        shows(&take(there, limit, "k").await, &expected);

        let answer = remove(here, limit, "k").await;
        assert_eq!(answer, json!({ "removed": true }));
        assert_eq!(remove(here, limit, "k").await, json!({ "removed": false }));
        eventually("the other sidecar knows of no override", async || {
            list(there).await.is_empty()
        })
        .await;
        assert_eq!(admitted(there, limit, "k", 3).await, 0, "it had taken all");
    }
    set(here, "per-key", "k", json!({ "quota": 9 })).await;
    for sidecar in &mut fleet.sidecars {
        sidecar.restart().await;
        // From the first decision on.
        assert_eq!(list(sidecar).await[0]["quota"], 9);
        let quotas = "sluicegate_overrides{allowance=\"quota\"}";
        assert_eq!(sidecar.metric(quotas).await, 1.0);
    }
    let [here, there] = &fleet.sidecars;
    // 8 of 9 were taken.
    assert_eq!(admitted(here, "per-key", "k", 1).await, 1);
    assert_eq!(admitted(there, "per-key", "k", 1).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_is_felt_by_all_sidecars_and_survives_their_restart() {
    let redis = Redis::start().await;
    let mut fleet = Fleet::start(&redis.url()).await;
    a_fleet_obeys(&mut fleet).await;
    let log = fleet.sidecars[0].log() + &fleet.sidecars[1].log();
    let audited: Vec<_> = log
        .lines()
        .filter(|line| line.contains(" audit: "))
        .collect();
    let set = audited.iter().find(|line| line.contains("INC-7")).unwrap();
    // The first digits of printf %s k | sha256sum.
    let parts = "override set, per-key, 8254c329a92850f6d539, quota 8, ann";
    for part in parts.split(", ") {
        assert!(set.contains(part), "no {part} in {set}");
    }
    assert!(audited.iter().any(|line| line.contains("override removed")));
    let [here, _] = &fleet.sidecars;
    remove(here, "per-key", "k").await;
    // The removals are remembered for a day.
    let ttl: i64 = redis.command("PTTL sg:{overrides}").await;
    assert!((1..=86_460_000).contains(&ttl), "{ttl}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_keeps_overrides_too() {
    let cluster = Cluster::start().await;
    let mut fleet = Fleet::start(&cluster.url()).await;
    a_fleet_obeys(&mut fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_ends_by_itself() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    let until = rfc3339_in(5);
    let blocked = json!({ "blocked": true, "until": until });
    set(here, "per-key", "b", blocked).await;
    let denied = take(here, "per-key", "b").await;
    let retry_ms = denied["retry_after_ms"].as_u64().unwrap();
    assert_eq!(denied["outcome"], "denied");
    assert!((1..=5_000).contains(&retry_ms), "{denied}");
    assert!(denied["hold_ms"].as_u64().unwrap() <= retry_ms, "{denied}");
    felt(there, "blocked", "per-key", "b", "denied").await;
    tokio::time::sleep(Duration::from_millis(retry_ms)).await;
    for sidecar in [here, there] {
        assert_eq!(take(sidecar, "per-key", "b").await["outcome"], "admitted");
    }
    assert_eq!(list(here).await[0]["state"], "ended");
    // All of them have an end, so Redis forgets the hash by itself, a day later.
    let ttl: i64 = redis.command("PTTL sg:{overrides}").await;
    assert!((1..=86_460_000).contains(&ttl), "{ttl}");
    set(here, "per-key", "u", json!({ "unlimited": true })).await;
    let ttl: i64 = redis.command("PTTL sg:{overrides}").await;
    assert_eq!(ttl, -1, "one without an end");
}
