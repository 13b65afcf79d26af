//! What an operator asks for, by the API and by the command: what is refused, and what is answered.

use reqwest::Method;
use serde_json::json;
use sluicegate_tests::sidecar::{self, Sidecar};

use super::super::support::{Policy, policy};
use super::{admitted, change, list, remove, set};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_refused_with_field_and_remedy() {
    let of_file = "windows: [{ quota: 5, per: 1h }], overrides: [{ key: file, quota: 6 }]";
    let many = "windows: [{ quota: 5, per: 1h }, { quota: 50, per: 24h }]";
    let policy = Policy::on("memory")
        .limit("per-key", &format!("algorithm: sliding_log, {of_file}"))
        .limit("many", &format!("algorithm: fixed_window, {many}"));
    let sidecar = Sidecar::alone(&policy.text()).await;
    let past = "2020-01-01T00:00:00Z";
    for (terms, named) in [
        (json!({}), "exactly one"),
        (json!({ "qouta": 5 }), "qouta"),
        (json!({ "quota": 0 }), "`quota` is 0"),
        (json!({ "quota": 5, "burst": 5 }), "token_bucket"),
        (json!({ "blocked": true, "until": past }), "has passed"),
        (json!({ "limit": "many", "quota": 5 }), "`1h`, `1day`"),
        (json!({ "limit": "per-kee", "quota": 5 }), "`per-key`"),
        (json!({ "key": "", "blocked": true }), "`key`"),
    ] {
        let mut body = json!({ "limit": "per-key", "key": "k" });
        let fields = body.as_object_mut().unwrap();
        fields.extend(terms.as_object().unwrap().clone());
        let code = match (&body["limit"], &body["key"]) {
            (limit, _) if limit == "per-kee" => "unknown_limit",
            (_, key) if key == "" => "empty_key",
            _ => "malformed_entry",
        };
        let (status, answer) = change(&sidecar, Method::PUT, &body).await;
        assert_eq!((status, &answer["code"]), (400, &json!(code)), "{answer}");
        assert!(answer.to_string().contains(named), "{body}: {answer}");
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
pub fn command(sidecar: &Sidecar, words: &[&str]) -> (Option<i32>, String) {
    let admin = sidecar.admin("");
    let done = std::process::Command::new(sidecar::binary())
        .arg("override")
        .args(words)
        .args(["--admin", &admin])
        .output()
        .unwrap();
    let printed =
        String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    (done.status.code(), printed)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sets_lists_and_removes() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 5, "1h")).await;
    let whom = ["--limit", "per-key", "--key", "acme"];
    let run = |verb: &str, words: &[&str]| command(&sidecar, &[&[verb], &whom[..], words].concat());
    assert_eq!(run("set", &[]).0, Some(64), "nothing is said to be allowed");
    assert_eq!(run("set", &["--quota", "7", "--blocked"]).0, Some(64));
    let (status, printed) = run("set", &["--quota", "7/1m"]);
    assert!(
        status == Some(64) && printed.contains("it has `1h`"),
        "{printed}"
    );
    let words = ["--quota", "7/1h", "--for", "2h", "--reason", "INC-7"];
    let (status, printed) = run("set", &words);
    assert!(
        status == Some(0) && printed.contains("quota 7/1h until 2"),
        "{printed}"
    );
    assert_eq!(admitted(&sidecar, "per-key", "acme", 9).await, 7);
    let (status, printed) = command(&sidecar, &["list", "--limit", "per-key"]);
    let row = printed.lines().nth(1).unwrap_or_default();
    let by = format!(
        "@{}",
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap()
            .trim()
    );
    for part in ["acme", "quota 7/1h", "store", "in force", "INC-7", &by] {
        assert!(
            status == Some(0) && row.contains(part),
            "no {part} in {printed}"
        );
    }
    let (status, printed) = run("remove", &["--by", "bob"]);
    assert!(
        status == Some(0) && printed.contains("removed"),
        "{printed}"
    );
    assert!(command(&sidecar, &["list"]).1.contains("no overrides"));
    assert_eq!(admitted(&sidecar, "per-key", "acme", 1).await, 0);
}

/// Its `Retry-After` was told as the time at which the request is admitted.
#[tokio::test(flavor = "multi_thread")]
async fn a_block_without_an_end_has_no_time_for_anybody() {
    let sidecar = Sidecar::alone(&policy("memory", "sliding_log", 5, "1h")).await;
    set(&sidecar, "per-key", "b", json!({ "blocked": true })).await;
    let run = |words: &[&str]| {
        let done = std::process::Command::new(sidecar::binary())
            .args(words)
            .args(["--limit", "per-key", "--key", "b"])
            .args(["--sidecar", &sidecar.url("")])
            .output()
            .unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    for command in ["decide", "peek"] {
        let told = run(&[command]);
        let is_told = told.contains("blocked until an operator changes that");
        assert!(
            is_told && !told.contains("retry in") && !told.contains("available"),
            "{told}"
        );
    }
    // Twice: the second time it is cached.
    for _ in 0..2 {
        let verdict = super::take(&sidecar, "per-key", "b").await;
        let told = (&verdict["until_changed"], &verdict["retry_after_ms"]);
        assert_eq!(told, (&json!(true), &json!(3_600_000)), "{verdict}");
    }
    let left: serde_json::Value =
        serde_json::from_str(&run(&["peek", "--output", "json"])).unwrap();
    for time in ["next_unit_ms", "reset_ms", "retry_after_ms"] {
        assert_eq!(left[time], json!(null), "{left}");
    }
    // With an end, it is that end: the times are back.
    let until = super::rfc3339_in(600);
    set(
        &sidecar,
        "per-key",
        "b",
        json!({ "blocked": true, "until": until }),
    )
    .await;
    let told = run(&["decide"]);
    assert!(
        told.contains("retry in 10m") || told.contains("retry in 9m"),
        "{told}"
    );
}
