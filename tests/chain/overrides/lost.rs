//! A store that loses overrides, or has old ones again.

use serde_json::{Value, json};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::super::support::{decide, peek, take};
use super::{Fleet, list, remove, set};

const HASH: &str = "sg:{overrides}";
const LOST: &str = "sluicegate_overrides_lost_total";

/// Waits until the sidecar lists this key's override in this state; `None`: not at all.
async fn listed(sidecar: &Sidecar, key: &str, state: Option<&str>) {
    eventually(&format!("`{key}` is listed as {state:?}"), async || {
        let list = list(sidecar).await;
        let of_key = list.iter().find(|one| one["key"] == key);
        of_key.map(|one| &one["state"]) == state.map(Value::from).as_ref()
    })
    .await;
}

/// Both sidecars list it so.
async fn both_list(fleet: &Fleet, key: &str, state: Option<&str>) {
    for sidecar in &fleet.sidecars {
        listed(sidecar, key, state).await;
    }
}

async fn outcome(sidecar: &Sidecar, key: &str) -> Value {
    take(sidecar, "per-key", key).await["outcome"].clone()
}

/// The key's snapshot, to be put in its place later.
async fn dump(redis: &Redis) -> Vec<u8> {
    let mut connection = redis.connection().await;
    let mut command = redis::cmd("DUMP");
    command
        .arg(HASH)
        .query_async(&mut connection)
        .await
        .unwrap()
}

async fn restore(redis: &Redis, snapshot: &[u8]) {
    let mut connection = redis.connection().await;
    let mut command = redis::cmd("RESTORE");
    command.arg(HASH).arg(0).arg(snapshot).arg("REPLACE");
    let () = command.query_async(&mut connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_the_store_loses_stays_and_is_written_back_until_it_is_removed() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    set(here, "per-key", "evil", json!({ "blocked": true })).await;
    set(here, "per-key", "vip", json!({ "unlimited": true })).await;
    both_list(&fleet, "vip", Some("in_force")).await;
    for loss in 1..=2 {
        let () = redis.command(&format!("UNLINK {HASH}")).await;
        both_list(&fleet, "vip", None).await;
        both_list(&fleet, "evil", Some("restored")).await;
        let kept: Vec<u8> = redis.command(&format!("HGET {HASH} per-key:evil")).await;
        assert_eq!(&kept[7..], br#" {"blocked":true}"#);
        for sidecar in [here, there] {
            assert_eq!(outcome(sidecar, "evil").await, "denied");
        }
        // The first that finds it tells.
        let told = here.metric(LOST).await + there.metric(LOST).await;
        assert_eq!(told, 2.0 * f64::from(loss));
        set(here, "per-key", "vip", json!({ "unlimited": true })).await;
        both_list(&fleet, "vip", Some("in_force")).await;
    }
    let logs = here.log() + &there.log();
    assert!(logs.contains("blocks written back: 1; others gone: 1"));
    let answer = remove(there, "per-key", "evil").await;
    assert_eq!(answer, json!({ "removed": true }));
    both_list(&fleet, "evil", None).await;
    // The removal is remembered, and a second loss does not undo it.
    let () = redis.command(&format!("UNLINK {HASH}")).await;
    both_list(&fleet, "vip", None).await;
    both_list(&fleet, "evil", None).await;
    for sidecar in [here, there] {
        assert_eq!(outcome(sidecar, "evil").await, "admitted");
    }
}

/// A replica that lagged becomes primary, or a snapshot is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_override_that_is_back_has_no_effect_until_it_is_set_again() {
    let redis = Redis::start().await;
    let mut fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    set(here, "per-key", "vip", json!({ "unlimited": true })).await;
    let snapshot = dump(&redis).await;
    set(here, "per-key", "evil", json!({ "blocked": true })).await;
    remove(there, "per-key", "vip").await;
    both_list(&fleet, "vip", None).await;
    both_list(&fleet, "evil", Some("in_force")).await;
    restore(&redis, &snapshot).await;
    both_list(&fleet, "vip", Some("returned")).await;
    both_list(&fleet, "evil", Some("restored")).await;
    let [here, there] = &mut fleet.sidecars;
    // It is marked in the store, for who starts later.
    there.restart().await;
    assert_eq!(list(there).await[1]["state"], "returned");
    for sidecar in [&*here, there] {
        // Five are in the window, and one of these is admitted at least.
        take(sidecar, "per-key", "vip").await;
        let five =
            json!({ "checks": [{ "limit": "per-key", "key": "vip", "cost": 5 }], "peek": true });
        assert_eq!(decide(sidecar, five).await["outcome"], "denied");
        assert_eq!(peek(sidecar, "per-key", "evil").await["outcome"], "denied");
    }
    set(here, "per-key", "vip", json!({ "unlimited": true })).await;
    both_list(&fleet, "vip", Some("in_force")).await;
    let [here, there] = &fleet.sidecars;
    for sidecar in [here, there] {
        for _ in 0..9 {
            assert_eq!(outcome(sidecar, "vip").await, "admitted");
        }
    }
    remove(here, "per-key", "vip").await;
    both_list(&fleet, "vip", None).await;
}

/// What a sidecar had written back, and lost again before it had read it, it took for what was there.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_lost_again_as_soon_as_it_is_written_back_is_written_back_again() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    set(here, "per-key", "evil", json!({ "blocked": true })).await;
    both_list(&fleet, "evil", Some("in_force")).await;
    let there_is = async || redis.command::<bool>(&format!("EXISTS {HASH}")).await;
    for _ in 0..5 {
        let () = redis.command(&format!("UNLINK {HASH}")).await;
        eventually("it is written back", there_is).await;
    }
    both_list(&fleet, "evil", Some("restored")).await;
    set(there, "per-key", "other", json!({ "blocked": true })).await;
    both_list(&fleet, "other", Some("in_force")).await;
    for sidecar in [here, there] {
        assert_eq!(outcome(sidecar, "evil").await, "denied");
    }
}
