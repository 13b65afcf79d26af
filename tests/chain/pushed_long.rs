//! Pushed rules a thousand times, by the hundred, and in two Envoys: what takes minutes. Figures go to standard error; only what
//! does not depend on the machine's speed is asserted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, status};
use sluicegate_tests::sidecar::Sidecar;

use super::super::support::{check, decide, envoy, generous, per_key, pushed, with_rules};
use super::{Admitted, all_have_others, change, filters, two_envoys, write};

/// Most rules with counters of their own, in a VM's life.
const OWN_RULES: usize = 512;
/// How much more memory a process may have: what allocators keep, and what a VM has not collected yet.
const MORE_KIB: u64 = 20 << 10;

/// A rule of this name, for paths that only its own expression matches. Compiled, that takes some 30 KB.
fn by_expression(name: &str) -> Value {
    let mut rule = per_key("deny")[0].take();
    rule["name"] = json!(name);
    rule["match"] = json!({ "path_regex": format!("/{name}/(?:[a-z0-9_-]{{1,40}}){{8}}") });
    rule
}

/// Names of the filter's statistics in Envoy.
async fn statistics(envoy: &Envoy) -> BTreeSet<String> {
    let (_, text) = get(&envoy.admin("/stats?filter=^wasmcustom")).await;
    let names = text.lines().filter_map(|line| line.rsplit_once(": "));
    names.map(|(name, _)| name.to_owned()).collect()
}

/// Resident memory of Envoy and sidecar, in KiB.
fn memory(envoy: &Envoy, sidecar: &Sidecar) -> [u64; 2] {
    [envoy.id(), sidecar.id()].map(|id| status(id, "VmRSS"))
}

fn assert_flat(before: [u64; 2], after: [u64; 2]) {
    eprintln!("memory of Envoy and sidecar: {before:?} KiB, then {after:?} KiB");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + MORE_KIB, "{before} KiB, then {after} KiB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_changes_leave_memory_and_statistics_bounded() {
    const CHANGES: usize = 1_000;
    let text = |version: usize| {
        with_rules(
            &generous(),
            &json!([by_expression(&format!("rule-{version}"))]),
        )
    };
    let sidecar = Sidecar::alone(&text(0)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    let (mut at_first, mut series) = ([0; 2], 0);
    for version in 1..=CHANGES {
        change(&sidecar, &text(version), 2).await;
        let path = format!("/rule-{version}/abcdefgh");
        assert_eq!(envoy.status(&path, "k").await, 200);
        if version == CHANGES / 5 {
            at_first = memory(&envoy, &sidecar);
            series = sidecar.metrics().await.lines().count();
        }
    }
    assert_flat(at_first, memory(&envoy, &sidecar));
    assert_eq!(sidecar.metrics().await.lines().count(), series);
    let names = statistics(&envoy).await;
    let rules = names.iter().filter_map(|name| {
        let (_, rest) = name.split_once("rule=.=")?;
        Some(rest.split_once(".;")?.0)
    });
    let rules: BTreeSet<_> = rules.collect();
    eprintln!("{} statistics of {} rules", names.len(), rules.len());
    assert_eq!(rules.len(), OWN_RULES + 1, "and `_other`");
    let last = "rule=.=_other;.;rule_decisions";
    eventually("later rules are counted together", async || {
        envoy.counted(last).await == (CHANGES + 1 - OWN_RULES) as u64
    })
    .await;
    let modified = envoy.stat("listener_manager.listener_modified").await;
    assert_eq!(modified, 0);
    envoy.is_well().await;
}

/// Each round has rules of its own, other ones, and the first again: the filter has kept those.
#[tokio::test(flavor = "multi_thread")]
async fn rollbacks_keep_no_rules_for_ever() {
    const ROUNDS: usize = 60;
    let text = |round: usize, version: usize| {
        let rule = |index| by_expression(&format!("round-{round}-{version}-{index}"));
        with_rules(&generous(), &(0..20).map(rule).collect())
    };
    let sidecar = Sidecar::alone(&text(0, 0)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    let mut at_first = [0; 2];
    for round in 1..=ROUNDS {
        for version in [0, 1, 0] {
            change(&sidecar, &text(round, version), 2).await;
        }
        let path = format!("/round-{round}-0-7/abcdefgh");
        assert_eq!(envoy.status(&path, "k").await, 200);
        if round == ROUNDS / 4 {
            at_first = memory(&envoy, &sidecar);
        }
    }
    assert_flat(at_first, memory(&envoy, &sidecar));
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_no_rule_matches_are_served_while_256_expressions_arrive() {
    const EXPRESSIONS: usize = 256;
    const CHANGES: usize = 20;
    let text = |version: usize| {
        let rule = |index| {
            let mut rule = by_expression(&format!("r{index}"));
            let regex = rule["match"]["path_regex"].as_str().unwrap();
            let regex = regex.replace("/r", &format!("/v{version}/r"));
            rule["match"] = json!({ "methods": ["PUT"], "path_regex": regex });
            rule
        };
        with_rules(&generous(), &(0..EXPRESSIONS).map(rule).collect())
    };
    let sidecar = Sidecar::alone(&text(0)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    let clients = Admitted::start(std::slice::from_ref(&envoy), 4);
    for version in 1..=CHANGES {
        change(&sidecar, &text(version), 2).await;
    }
    clients.stop().await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_under_load_have_each_change() {
    const CHANGES: usize = 20;
    const CLIENTS: usize = 64;
    let text = |version: usize| {
        let mut rules = per_key("deny");
        rules[0]["name"] = json!(format!("version-{version}"));
        with_rules(&generous(), &rules)
    };
    let sidecar = Sidecar::alone(&text(0)).await;
    let envoys = two_envoys(&sidecar).await;
    let clients = Admitted::start(&envoys, CLIENTS);
    let mut taken = Vec::new();
    for version in 1..=CHANGES {
        // So that the changes fall into all phases of the sidecar's reading, and of the filters' waiting.
        tokio::time::sleep(Duration::from_millis(1_900 + version as u64 * 37)).await;
        let (before, _) = filters(&sidecar).await;
        write(&sidecar.policy, &text(version));
        let began = Instant::now();
        all_have_others(&sidecar, &before, 6).await;
        taken.push(began.elapsed());
    }
    clients.stop().await;
    taken.sort();
    let [median, worst] = [taken[CHANGES / 2], taken[CHANGES - 1]];
    eprintln!("from the file to all workers of two Envoys: median {median:?}, worst {worst:?}");
    for envoy in envoys {
        envoy.is_well().await;
    }
}

/// Other changes meanwhile do not keep it for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_was_removed_is_gone_after_a_minute_despite_other_changes() {
    let sidecar = Sidecar::alone(&generous()).await;
    let other = generous().replace("per-key", "other");
    let question = json!({ "checks": [check("per-key", "k")] });
    let began = Instant::now();
    for version in 0.. {
        let mut rules = per_key("deny");
        rules[0]["name"] = json!(format!("version-{version}"));
        rules[0]["checks"][0]["limit"] = json!("other");
        write(&sidecar.policy, &with_rules(&other, &rules));
        let epoch = f64::from(version + 2);
        sidecar.reaches("sluicegate_policy_epoch", epoch).await;
        let verdict = decide(&sidecar, question.clone()).await;
        if verdict["outcome"] == "error" {
            break;
        }
        assert_eq!(verdict["outcome"], "admitted");
        let passed = began.elapsed();
        assert!(passed < Duration::from_mins(3), "it is still there");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert!(began.elapsed() >= Duration::from_mins(1));
}
