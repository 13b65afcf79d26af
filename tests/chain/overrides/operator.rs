//! What an operator asks for, by the API and by the command: what is refused, and what is answered.

use reqwest::Method;
use serde_json::json;
use sluicegate_tests::sidecar::{self, Sidecar};

use super::super::support::{Policy, policy};
use super::{admitted, change, list, remove, set, shows};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_refused_with_field_and_remedy() {
    let of_file = "windows: [{ quota: 5, per: 1h }], overrides: [{ key: file, quota: 6 }]";
    let many = "windows: [{ quota: 5, per: 1h }, { quota: 50, per: 24h }]";
    let policy = Policy::on("memory")
        .limit("per-key", &format!("algorithm: sliding_log, {of_file}"))
        .limit("many", &format!("algorithm: fixed_window, {many}"));
    let sidecar = Sidecar::alone(&policy.text()).await;
    let table = r#"
        {} | malformed_entry | exactly one
        { "qouta": 5 } | malformed_entry | qouta
        { "quota": 0 } | malformed_entry | `quota` is 0
        { "quota": 5, "burst": 5 } | malformed_entry | token_bucket
        { "blocked": true, "until": "2020-01-01T00:00:00Z" } | malformed_entry | `until`: `2020-01-01T00:00:00Z` has passed
        { "limit": "many", "quota": 5 } | malformed_entry | `1h`, `1day`
        { "limit": "per-kee", "quota": 5 } | unknown_limit | `per-key`
        { "limit": "logins", "quota": 5 } | unknown_limit | `sluicegate top --once` lists
        { "key": "", "blocked": true } | empty_key | `key`
    "#;
    for line in table.trim().lines() {
        let row: Vec<_> = line.split(" | ").collect();
        let [terms, code, named] = row[..] else {
            panic!("{line}")
        };
        let terms = serde_json::from_str(terms).unwrap();
        let answer = change(&sidecar, Method::PUT, ("per-key", "k"), &terms, 400).await;
        shows(&answer, &json!({ "code": code }));
        assert!(answer.to_string().contains(named), "{terms}: {answer}");
    }
    assert_eq!(
        admitted(&sidecar, "per-key", "file", 9).await,
        6,
        "the policy file's"
    );
    set(&sidecar, "per-key", "file", json!({ "quota": 8 })).await;
    assert_eq!(
        admitted(&sidecar, "per-key", "file", 9).await,
        2,
        "the store's comes first"
    );
    let answer = remove(&sidecar, "per-key", "file").await;
    assert_eq!(answer["in_policy"]["quota"], 6, "{answer}");
    let listed = list(&sidecar).await;
    assert_eq!((listed.len(), &listed[0]["source"]), (1, &json!("policy")));
}

/// Status and output of `sluicegate override` with these arguments.
pub fn command(sidecar: &Sidecar, words: &str) -> (Option<i32>, String) {
    sidecar::command(&format!("override {words} --admin {}", sidecar.admin("")))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sets_lists_and_removes() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 5, "1h")).await;
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let listed = format!(
        "acme, quota 7/1h, store, in force, INC-7, @{}",
        hostname.trim()
    );
    // Arguments, the status, what is printed, and how many of nine requests are admitted then.
    for (words, status, printed, units) in [
        ("set WHOM", 64, "--quota", 5),
        ("set WHOM --quota 7 --blocked", 64, "cannot be used with", 0),
        ("set WHOM --quota 7/1m", 64, "it has `1h`", 0),
        (
            "set WHOM --quota 7/1h --for 2h --reason INC-7",
            0,
            "quota 7/1h until 2",
            2,
        ),
        ("list --limit per-key", 0, &listed, 0),
        ("remove WHOM --by bob", 0, "removed", 0),
        ("list", 0, "no overrides", 0),
    ] {
        let words = words.replace("WHOM", "--limit per-key --key acme");
        let (code, told) = command(&sidecar, &words);
        assert_eq!(code, Some(status), "{words}: {told}");
        for part in printed.split(", ") {
            assert!(told.contains(part), "{words}: no {part} in {told}");
        }
        let admitted = admitted(&sidecar, "per-key", "acme", 9).await;
        assert_eq!(admitted, units, "{words}");
    }
}

/// Its `Retry-After` was told as the time at which the request is admitted.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_without_an_end_has_no_time_for_anybody() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 5, "1h")).await;
    set(&sidecar, "per-key", "b", json!({ "blocked": true })).await;
    let run = |words: &str| {
        let of_key = "--limit per-key --key b";
        sidecar::command(&format!("{words} {of_key} --sidecar {}", sidecar.url(""))).1
    };
    for command in ["decide", "peek"] {
        let told = run(command);
        let is_told = told.contains("blocked until an operator changes that");
        let has_time = told.contains("retry in") || told.contains("available");
        assert!(is_told && !has_time, "{told}");
    }
    // Twice: the second time it is cached.
    for _ in 0..2 {
        let expected = json!({ "until_changed": true, "retry_after_ms": 3_600_000 });
        shows(&super::take(&sidecar, "per-key", "b").await, &expected);
    }
    let left = serde_json::from_str(&run("peek --output json")).unwrap();
    let times = json!({ "next_unit_ms": null, "reset_ms": null, "retry_after_ms": null });
    shows(&left, &times);
    // With an end, it is that end: the times are back.
    let blocked = json!({ "blocked": true, "until": super::rfc3339_in(600) });
    set(&sidecar, "per-key", "b", blocked).await;
    let told = run("decide");
    assert!(
        told.contains("retry in 10m") || told.contains("retry in 9m"),
        "{told}"
    );
}
