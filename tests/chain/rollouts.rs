//! A change of names reaches two sidecars behind one cluster one after the other, and is taken back: under load, nobody gets more
//! than the quotas, and no request lacks a verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::ask::logs;
use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::process::{eventually, eventually_within};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, command};

use super::support::{Policy, behind, envoy, pushed};

/// The quota of each limit, but for that of `wide`.
const QUOTA: u64 = 20;
/// What a rule says if there is no verdict, and the path that it is for.
const FAILURES: [&str; 2] = ["allow", "deny"];

/// A policy of these limits, each twice, and of these sets, in which rules ask for all of them by the API key. A limit is a name, an
/// algorithm, and `+` if it is that of an entry of `consumers` with the name before the dot.
fn text(store: &str, limits: &str, sets: &str) -> String {
    let mut policy = Policy::on(store).line("denial_ttl: 100ms");
    let (mut rules, mut consumers) = (Vec::new(), json!({}));
    for failure in FAILURES {
        let mut checks = Vec::new();
        for limit in limits.split(", ") {
            let mut words = limit.split(' ');
            let [name, algorithm] = [(); 2].map(|()| words.next().unwrap());
            let name = format!("{failure}-{name}");
            let quota = if limit.starts_with("wide") {
                2 * QUOTA
            } else {
                QUOTA
            };
            policy = policy.window(&name, algorithm, quota, "30d");
            let mut check = json!({ "limit": name, "key": [{ "header": "x-api-key" }] });
            if words.next().is_some() {
                let entry = name.split('.').next().unwrap();
                consumers[entry] =
                    json!({ "pepper": "0123456789ab", "keys": {}, "limits": { "default": name } });
                check["limit"] = json!(entry);
                check["consumers"] = json!(true);
                check["when_missing"] = json!({ "address": {} });
            }
            checks.push(check);
        }
        rules.push(
            json!({ "name": failure, "match": { "path": format!("/{failure}") },
            "checks": checks, "when_unavailable": failure }),
        );
    }
    let sets = sets
        .split(' ')
        .map(|set| (set.to_owned(), json!({ "rules": rules })));
    let sets = Value::Object(sets.collect());
    let policy = policy.line(&format!("consumers: {consumers}"));
    format!("{}\nrules: {sets}\n", policy.text())
}

async fn change(sidecar: &Sidecar, text: &str) {
    let before = sidecar.metric("sluicegate_policy_epoch").await;
    let new = sidecar.policy.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, &sidecar.policy).unwrap();
    sidecar.signal("HUP");
    eventually("the policy is in force", async || {
        sidecar.metric("sluicegate_policy_epoch").await > before
    })
    .await;
    // What the filters make of it, under load.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
}

/// Sends requests with one key, or each with another, until told to stop; counts those that passed, and those with 5xx.
fn load(url: String, key: Option<&str>, go_on: &Arc<AtomicBool>) -> [Arc<AtomicU64>; 2] {
    let counts: [Arc<AtomicU64>; 2] = Default::default();
    let (go_on, [passed, failed]) = (Arc::clone(go_on), counts.clone());
    let key = key.map(str::to_owned);
    tokio::spawn(async move {
        let client = client();
        for n in 0.. {
            if !go_on.load(Ordering::Relaxed) {
                return;
            }
            let own = key.clone().unwrap_or_else(|| format!("other-{n}"));
            match status_for(&client, &url, &own).await {
                Some(200) => _ = passed.fetch_add(1, Ordering::Relaxed),
                Some(429) => {}
                _ => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    });
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_change_is_rolled_out_and_back_over_two_sidecars_without_a_loss() {
    // The kind; limits and sets before and after; the most that one key may get.
    for (kind, before, after, most) in [
        (
            "add",
            ["one fixed_window", "s"],
            ["one fixed_window, wide fixed_window", "s"],
            QUOTA,
        ),
        (
            "remove",
            ["one fixed_window, wide fixed_window", "s"],
            ["one fixed_window", "s"],
            QUOTA,
        ),
        (
            "rename",
            ["one fixed_window", "s"],
            ["uno fixed_window", "s"],
            2 * QUOTA,
        ),
        (
            "algorithm",
            ["one fixed_window", "s"],
            ["one sliding_log", "s"],
            2 * QUOTA,
        ),
        (
            "tiers",
            ["one fixed_window", "s"],
            ["one.default fixed_window +", "s"],
            2 * QUOTA,
        ),
        (
            "consumers",
            ["one.a fixed_window +", "s"],
            ["one.b fixed_window +", "s"],
            2 * QUOTA,
        ),
        // The filter refuses the rules.
        (
            "sets",
            ["one fixed_window", "s other"],
            ["uno fixed_window", "s"],
            QUOTA,
        ),
    ] {
        let redis = Redis::start().await;
        let [before, after] =
            [before, after].map(|[limits, sets]| text(&redis.url(), limits, sets));
        let sidecars = [Sidecar::alone(&before).await, Sidecar::alone(&before).await];
        let mut plugin = pushed();
        if kind == "sets" {
            plugin["rule_sets"]["others"] = json!(["other"]);
            plugin["rule_sets"]["by"] = json!("route_name");
        }
        let envoy = behind(&sidecars, plugin, 1).await;
        let go_on = Arc::new(AtomicBool::new(true));
        let url = |failure: &str| envoy.url(&format!("/{failure}"));
        let one = FAILURES.map(|failure| load(url(failure), Some("k"), &go_on));
        let others = FAILURES.map(|failure| load(url(failure), None, &go_on));
        tokio::time::sleep(Duration::from_millis(500)).await;
        // There is a filter in the worker, and one in the main thread.
        let mut updated = 2;
        envoy.counts(&[("rules_updated", updated)]).await;
        // The rules are the same if only an algorithm changes, or the limits of an entry.
        let moves = !["algorithm", "consumers", "sets"].contains(&kind);
        for order in [[0, 1], [1, 0]] {
            for text in [&after, &before] {
                for index in order {
                    change(&sidecars[index], text).await;
                }
                if moves {
                    eventually("the filter has the rules of both", async || {
                        envoy.counted("rules_updated").await > updated
                    })
                    .await;
                    updated = envoy.counted("rules_updated").await;
                }
            }
        }
        go_on.store(false, Ordering::Relaxed);
        let counts = |of: &[[Arc<AtomicU64>; 2]; 2], index: usize| {
            [0, 1].map(|failure| of[failure][index].load(Ordering::Relaxed))
        };
        let passed = counts(&one, 0);
        let failed = [counts(&one, 1), counts(&others, 1)];
        let unmetered = envoy.counted("unavailable_allowed").await;
        eprintln!("{kind}: {passed:?} of {most} passed, 5xx {failed:?}, unmetered {unmetered}");
        // Of those whose entry has no keys, all share the bucket of the address.
        let is_shared = ["tiers", "consumers"].contains(&kind);
        let least = if is_shared { 1 } else { QUOTA };
        assert!(
            passed.iter().all(|passed| (least..=most).contains(passed)),
            "{kind}: {passed:?}"
        );
        assert_eq!((failed, unmetered), ([[0; 2]; 2], 0), "{kind}");
        if !moves {
            assert_eq!(envoy.counted("rules_updated").await, updated, "{kind}");
        }
        envoy.is_well().await;
    }
}

/// Whichever sidecar it asks first: it may have the new rules, which the other one cannot decide.
#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_starts_in_a_rollout_is_soon_decided_by_both() {
    let [before, after] =
        ["one", "uno"].map(|limit| text("memory", &format!("{limit} fixed_window"), "s"));
    let sidecars = [Sidecar::alone(&before).await, Sidecar::alone(&before).await];
    change(&sidecars[0], &after).await;
    for start in 0..4 {
        let envoy = behind(&sidecars, pushed(), 1).await;
        eventually("twenty in a row have a verdict", async || {
            let mut decided = 0;
            // All of them: whoever stops at the first without a verdict leaves the other sidecar next in turn, each time.
            for n in 0..20 {
                let status = envoy.status("/deny", &format!("{start}-{n}")).await;
                decided += u32::from(status != 503);
            }
            decided == 20
        })
        .await;
    }
}

/// The policy drops a set that Envoy lists, and renames a limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_refuses_rules_keeps_its_limits_for_as_long_as_it_runs_and_is_told() {
    let [before, after] = [("one", "s other"), ("uno", "s")]
        .map(|(limit, sets)| text("memory", &format!("{limit} fixed_window"), sets));
    let sidecar = Sidecar::alone(&before).await;
    let mut plugin = pushed();
    plugin["rule_sets"]["others"] = json!(["other"]);
    plugin["rule_sets"]["by"] = json!("route_name");
    let sidecars = [sidecar];
    let envoy = behind(&sidecars, plugin, 1).await;
    assert_eq!(envoy.status("/deny", "k").await, 200);
    change(&sidecars[0], &after).await;
    sidecars[0]
        .reports("the policy has no rule set `other`")
        .await;
    // Longer than everything is kept.
    tokio::time::sleep(Duration::from_secs(65)).await;
    let mut passed = 1;
    for _ in 0..2 * QUOTA {
        match envoy.status("/deny", "k").await {
            200 => passed += 1,
            status => assert_eq!(status, 429),
        }
    }
    assert_eq!(passed, QUOTA);
    assert_eq!(envoy.counted("unavailable_denied").await, 0);
    assert!(sidecars[0].metric("sluicegate_kept_ratio").await > 0.0);
}

/// What `sluicegate rollout` exits with, and all that it prints.
fn rollout(sidecar: &Sidecar, words: &str) -> (Option<i32>, String) {
    command(&format!("rollout --admin {} {words}", sidecar.admin("")))
}

#[tokio::test(flavor = "multi_thread")]
async fn rollout_tells_a_refused_file_and_leaves_filters_that_are_gone_out() {
    let before = text("memory", "one fixed_window", "s");
    let sidecar = Sidecar::alone(&before).await;
    let mut ended = envoy(sidecar.port, pushed()).await;
    let (code, told) = rollout(&sidecar, "--wait");
    assert_eq!(code, Some(0), "{told}");

    std::fs::write(&sidecar.policy, "limits: [").unwrap();
    sidecar.signal("HUP");
    sidecar.reports("the policy file is refused").await;
    let (code, told) = rollout(&sidecar, "--wait --timeout 1s");
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("refuses its policy file: "), "{told}");
    assert!(
        told.contains(" in_force "),
        "the filter has the rules: {told}"
    );

    change(&sidecar, &text("memory", "uno fixed_window", "s")).await;
    ended.kill();
    let _envoy = envoy(sidecar.port, pushed()).await;
    eventually("the one that has ended is gone", async || {
        rollout(&sidecar, "").1.contains(" gone ")
    })
    .await;
    let (code, told) = rollout(&sidecar, "--wait");
    assert_eq!(code, Some(0), "{told}");
}

/// A filter reports to one sidecar each time, and every 15 seconds if nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn all_sidecars_of_a_cluster_know_soon_and_truly_what_filters_have_and_wait_for() {
    let [before, after, third] =
        ["one", "uno", "eins"].map(|limit| text("memory", &format!("{limit} fixed_window"), "s"));
    let sidecars = [Sidecar::alone(&before).await, Sidecar::alone(&before).await];
    // One filter for each worker, and that of the main thread.
    let (workers, filters) = (2, 3);
    let envoy = behind(&sidecars, pushed(), workers).await;
    let all_know = async |updated| {
        envoy.counts(&[("rules_updated", updated)]).await;
        for sidecar in &sidecars {
            eventually_within(Duration::from_secs(8), "the sidecar knows", async || {
                let (code, told) = rollout(sidecar, "");
                code == Some(0) && told.matches(" in_force ").count() == filters
            })
            .await;
        }
    };
    all_know(3).await;

    let [first, second] = &sidecars;
    change(first, &after).await;
    second.reaches("sluicegate_filters_held_back", 3.0).await;
    let told = rollout(second, "").1;
    let number = told.strip_prefix("sidecar ").unwrap();
    let (number, _) = number.split_once(',').unwrap();
    let waits = format!("waits for sidecar {number}");
    first.reports(&waits).await;
    let held = |sidecar: &Sidecar| sidecar.log().matches("keep earlier rules").count();
    let waiting = |sidecar| rollout(sidecar, "").1.matches(&waits).count();
    eventually("all wait", async || waiting(first) == filters).await;
    assert_eq!(waiting(second), 0, "none waits for the sidecar that has it");
    // Where that is.
    let metric = format!("sidecar=\"{number}\"");
    assert!(second.metrics().await.contains(&metric));
    logs(second, &metric).await;
    assert!(second.readyz().await.contains(&format!("sidecar {number}")));

    // Each split is told, also soon after another one. Sidecars look every second.
    eventually("the split is told", async || held(second) > 0).await;
    change(first, &before).await;
    second.reaches("sluicegate_filters_held_back", 0.0).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let told = || first.log().matches(&waits).count();
    let earlier = (told(), held(second));
    assert_eq!(earlier.1, 1, "{}", second.log());
    change(first, &third).await;
    eventually("the second split is told", async || {
        told() > earlier.0 && held(second) > earlier.1
    })
    .await;

    change(second, &third).await;
    all_know(6).await;
    for sidecar in &sidecars {
        assert!(!rollout(sidecar, "").1.contains("waits for"));
        let metric = sidecar.metric("sluicegate_filters_held_back").await;
        assert!(metric < 1.0);
    }
    // At most once in each split for each filter, or once for all.
    assert!(told() <= 2 * filters, "{}", first.log());
    assert_eq!(held(second), 2, "{}", second.log());
    assert!(!second.log().contains(&waits), "{}", second.log());
}
