//! Who is being denied: the sidecar's `/v1/top` and the command that shows it, compared with what clients saw.

use std::process::{Command, Output};

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get, status_for};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::{Sidecar, binary};

use super::support::{Chain, Policy, decide_all, generous, per_key, with_rules};

const SECRET: &str = "mallory";
/// Requests of the abusive client.
const ABUSE: u64 = 300;
/// Other clients, with two requests each: more than the sketch has entries, so that its error is not 0 by luck.
const OTHERS: u64 = 200;

async fn top(sidecar: &Sidecar) -> Value {
    let url = sidecar.admin("/v1/top");
    let (status, body) = get(&url).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn run(arguments: &[&str]) -> (Output, String) {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let said = said.into_owned();
    (output, said)
}

/// What `explain` prints for a request with this API key.
fn subject_of(key: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, with_rules(&generous(), &per_key("deny"))).unwrap();
    let header = format!("x-api-key: {key}");
    let file = file.to_str().unwrap();
    let request = ["--request", "GET /", "-H", &header];
    let (_, said) = run(&[&["explain", "--policy", file], &request[..]].concat());
    let subject = said
        .split("subject ")
        .nth(1)
        .unwrap_or_else(|| panic!("{said}"));
    subject.split_whitespace().next().unwrap().to_owned()
}

/// The number of 429s that a client with this key gets for this many requests.
async fn denials(url: String, key: String, requests: u64) -> u64 {
    let (client, mut denied) = (client(), 0);
    for _ in 0..requests {
        let status = status_for(&client, &url, &key).await.unwrap();
        denied += u64::from(status == 429);
    }
    denied
}

#[tokio::test(flavor = "multi_thread")]
async fn top_lists_the_most_denied_key_by_the_hash_that_explain_prints() {
    let chain = Chain::of("sliding_log", 1, "1h").await;
    let abuser = tokio::spawn(denials(chain.envoy.url("/"), SECRET.to_owned(), ABUSE));
    let url = chain.envoy.url("/");
    let crowd = tokio::spawn(async move {
        let mut denied = 0;
        for name in 0..OTHERS {
            denied += denials(url.clone(), format!("other-{name}"), 2).await;
        }
        denied
    });
    let (abuse, others) = (abuser.await.unwrap(), crowd.await.unwrap());
    assert_eq!((abuse, others), (ABUSE - 1, OTHERS));
    // The filter reports what it denied by itself within a second.
    eventually("all 429s are reported", async || {
        top(&chain.sidecar).await["limits"][0]["denied_total"] == abuse + others
    })
    .await;
    let top_limits = top(&chain.sidecar).await;
    let limit = &top_limits["limits"][0];
    assert_eq!(limit["limit"], "per-key");
    let first = &limit["most_denied"][0];
    let (count, error) = (
        first["count"].as_u64().unwrap(),
        first["error"].as_u64().unwrap(),
    );
    assert!(
        count - error <= abuse && abuse <= count,
        "{first}, truly {abuse}"
    );
    assert!(
        error <= (abuse + others) / 146 + 1,
        "the bound that docs/top.md gives: {first}"
    );
    assert_eq!(first["subject"], subject_of(SECRET));
    assert_ne!(subject_of("somebody-else"), subject_of(SECRET));
    assert_eq!(limit["most_denied"].as_array().unwrap().len(), 10);
    assert_eq!(limit["nearest"][0]["used_ratio"], 1.0);
    let share = "sluicegate_top_denied_ratio{limit=\"per-key\"}";
    let share = chain.sidecar.metric(share).await;
    let least = (count - error) as f64 / (abuse + others) as f64;
    assert!((share - least).abs() < 0.001, "{share}, {least}");
}

#[tokio::test]
async fn the_command_prints_a_table_or_json_and_never_a_key() {
    let policy = Policy::on("memory")
        .window("per-key", "sliding_log", 4, "1h")
        .window("idle", "sliding_log", 1, "1s");
    let sidecar = Sidecar::alone(&policy.text()).await;
    let check = |key: &str, cost: u64| json!({ "checks": [{ "limit": "per-key", "key": key, "cost": cost }] });
    let mut decisions = vec![check(SECRET, 4), check("near", 3), check("far", 1)];
    decisions.extend(vec![check(SECRET, 1); 3]);
    decide_all(&sidecar, decisions).await;

    let admin = sidecar.admin("");
    let (output, page) = run(&["top", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0), "{page}");
    // printf %s mallory | sha256sum | cut -c1-20
    let [mallory, near, far] = [
        "c0a497761b175379ed63",
        "46ba34770bccfde75670",
        "512eea46ceb3921dff43",
    ];
    for line in [
        "limit per-key: 3 denied in the last".to_owned(),
        format!("  {mallory}           3       0   100 %\n"),
        format!("  {mallory}       100 %\n  {near}        75 %\n  {far}        25 %\n"),
        "limit idle: 0 denied in the last".to_owned(),
    ] {
        assert!(page.contains(&line), "no {line:?} in\n{page}");
    }
    assert!(!page.contains('\x1b'), "plain where nobody looks");

    let (_, json) = run(&[
        "top", "--admin", &admin, "--output", "json", "--limit", "per-key",
    ]);
    let top_limits: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(top_limits["limits"].as_array().unwrap().len(), 1, "{json}");
    assert_eq!(
        top_limits["limits"][0]["most_denied"],
        json!([{ "subject": mallory, "count": 3, "error": 0 }])
    );
    for text in [&page, &json, &sidecar.metrics().await, &sidecar.log()] {
        assert!(!text.contains(SECRET), "{text}");
    }

    let (output, said) = run(&["top", "--admin", &admin, "--limit", "per-kee"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(
        said.contains("`per-kee`") && said.contains("`idle`, `per-key`"),
        "{said}"
    );
}

#[test]
fn without_a_sidecar_the_command_says_what_to_do() {
    let nobody = format!(
        "http://127.0.0.1:{}",
        sluicegate_tests::process::free_port()
    );
    let (output, said) = run(&["top", "--admin", &nobody]);
    assert_eq!(output.status.code(), Some(69), "{said}");
    for part in [nobody.as_str(), "refused", "--admin-listen"] {
        assert!(said.contains(part), "no {part} in {said}");
    }
}
