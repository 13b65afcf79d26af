//! `docs/metrics.md` lists what a running sidecar serves, and promtool accepts its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::policy::with_rules;
use sluicegate_tests::process::{eventually, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{Policy, ask, check, decide, decided, policy, take, with_state};

fn decision(limit: &str, key: &str) -> Value {
    json!({ "checks": [check(limit, key)] })
}

fn shadow(limit: &str, key: &str) -> Value {
    json!({ "checks": [check(limit, key)], "shadow": "trial" })
}

/// A sidecar to which every kind of event has happened, and the parts that it needs.
async fn experienced() -> (Sidecar, Redis) {
    let mut redis = Redis::start().await;
    // Only a token bucket has a burst, and only limits with leases or slots have series of these.
    let pooled = "algorithm: fixed_window, windows: [{ quota: 5000, per: 1h }], lease: {}";
    let policy = Policy::on(redis.url())
        .window("per-key", "sliding_log", 2, "1h")
        .window("bucket", "token_bucket", 5, "1m")
        .limit("pooled", pooled)
        .window("streams", "concurrency", 2, "30s");
    let sidecar = Sidecar::alone(&ruled(&policy.text())).await;
    live_through_everything(&sidecar, &mut redis).await;
    (sidecar, redis)
}

/// A policy with a rule too, and a shadow rule.
fn ruled(policy: &str) -> String {
    let check = json!({ "limit": "per-key", "key": [{ "constant": "c" }] });
    let rule = json!({ "name": "all", "checks": [check], "when_unavailable": "deny" });
    let trial = json!({ "name": "trial", "shadow": true, "checks": [rule["checks"][0]] });
    with_rules(policy, &json!([rule, trial]))
}

/// The metrics of a sidecar whose file was broken when it started.
async fn with_the_last_good_policy() -> String {
    let good = ruled(&policy("memory", "sliding_log", 1, "1h"));
    let (_state, mut sidecar) = with_state(&good).await;
    sidecar.kill();
    std::fs::write(&sidecar.policy, "limits: 7\n").unwrap();
    sidecar.restart().await;
    sidecar.metrics().await
}

/// Causes every kind of event that a metric counts.
async fn live_through_everything(sidecar: &Sidecar, redis: &mut Redis) {
    for _ in 0..3 {
        decide(sidecar, decision("per-key", "a")).await;
        decide(sidecar, shadow("per-key", "b")).await;
    }
    let denied = json!([
        { "limit": "per-key", "key": "a", "count": 4 },
        { "limit": "per-key", "shadow": "trial", "count": 2 },
        { "limit": "gone", "count": 1 },
    ]);
    let cannot = [decision("nope", "a"), shadow("nope", "a")];
    let report = json!({ "decisions": cannot, "denied": denied });
    ask(sidecar.port, "/v1/decide", report).await;
    let reset = json!({ "resets": [check("per-key", "a")] });
    ask(sidecar.admin_port, "/v1/reset", reset).await;
    let receipt = json!({ "checks": [check("per-key", "c")], "receipt": true });
    let taken = decide(sidecar, receipt).await["receipt"][0].take();
    let entry = json!({ "limit": "per-key", "key": "c", "receipt": taken, "units": 0 });
    let answer = ask(sidecar.port, "/v1/settle", json!({ "settles": [entry] })).await;
    assert_eq!(answer["outcomes"][0]["units"], 1, "{answer}");
    // A filter announces itself.
    let announcement = "0.1.0 configuration=2d0f3b8e61a4";
    let url = sidecar.url("/v1/decide");
    let call = client().post(url).header("sluicegate-filter", announcement);
    let answer = call.body(r#"{"decisions":[]}"#).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    // A reload, and one that is refused.
    let first = std::fs::read_to_string(&sidecar.policy).unwrap();
    std::fs::write(&sidecar.policy, first.replace("quota: 2", "quota: 3")).unwrap();
    sidecar.reaches("sluicegate_policy_epoch", 2.0).await;
    std::fs::write(&sidecar.policy, first.replace("quota: 2", "quota: -2")).unwrap();
    eventually("the policy is refused", async || {
        let reloaded = "sluicegate_policy_last_reload_successful";
        sidecar.metric(reloaded).await == 0.0
    })
    .await;
    assert_eq!(sidecar.metric("sluicegate_store_up").await, 1.0);
    redis.kill();
    let verdict = take(sidecar, "per-key", "d").await;
    assert_eq!(verdict["outcome"], "unavailable");
    // A moment after the answer: a background task keeps the store's health.
    sidecar.reaches("sluicegate_store_up", 0.0).await;
}

/// A table's rows, as the texts of their cells.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = page
        .split_once(heading)
        .unwrap_or_else(|| panic!("{heading}"));
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| "));
    rows.skip(1)
        .map(|row| {
            row.trim_matches('|')
                .split(" |")
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect()
}

/// The texts in backticks.
fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Type and labels of each metric.
type Table = BTreeMap<String, (String, BTreeSet<String>)>;

/// The metrics in the text format, with the values of each label.
fn served(text: &str) -> (Table, BTreeMap<String, BTreeSet<String>>) {
    let (mut table, mut values) = (Table::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for line in text.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            table.insert(name.to_owned(), (kind.to_owned(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (series, _) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let parts = ["_bucket", "_sum", "_count"];
            let family = parts.iter().find_map(|part| {
                let family = name.strip_suffix(part)?;
                table.contains_key(family).then_some(family)
            });
            let family = table.get_mut(family.unwrap_or(name)).unwrap();
            for label in labels
                .trim_end_matches('}')
                .split("\",")
                .filter(|l| !l.is_empty())
            {
                let (label, value) = label.split_once("=\"").unwrap();
                if label != "le" {
                    family.1.insert(label.to_owned());
                    let value = value.trim_end_matches('"').to_owned();
                    values.entry(label.to_owned()).or_default().insert(value);
                }
            }
        }
    }
    (table, values)
}

#[tokio::test]
async fn the_documented_metrics_are_those_that_a_sidecar_serves() {
    let (sidecar, _redis) = experienced().await;
    let text = with_the_last_good_policy().await + &sidecar.metrics().await;
    let (served, values) = served(&text);

    let page = std::fs::read_to_string(repository("docs/metrics.md")).unwrap();
    let mut documented = Table::new();
    for row in rows(&page, "\n## Sidecar metrics\n") {
        let name = quoted(&row[0]).pop_first().unwrap();
        documented.insert(name, (row[1].clone(), quoted(&row[2])));
    }
    assert_eq!(documented, served);

    let mut meanings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows(&page, "\n## Labels\n") {
        let values = meanings
            .entry(quoted(&row[0]).pop_first().unwrap())
            .or_default();
        values.extend(quoted(&row[1]));
    }
    let labels = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(labels(&meanings), labels(&values));
    for (label, meanings) in meanings {
        // A limit's name is chosen by the operator.
        if !meanings.is_empty() {
            assert_eq!(meanings, values[&label], "values of `{label}`");
        }
    }
    for (limit, verdict, count) in [
        ("per-key", "denied", 4),
        ("per-key", "shadow_denied", 2),
        ("", "denied", 1),
    ] {
        let told = decided(&sidecar, limit, "filter", verdict).await;
        assert_eq!(told, count, "{limit} {verdict}\n{text}");
    }
    for (name, value) in [
        (
            r#"shadow_decisions_total{limit="per-key",rule="trial",verdict="denied"}"#,
            3.0,
        ),
        (r#"top_denied_ratio{limit="per-key"}"#, 1.0),
    ] {
        let metric = sidecar.metric(&format!("sluicegate_{name}")).await;
        assert_eq!(metric, value, "{name}\n{text}");
    }
}

#[tokio::test]
async fn promtool_finds_nothing_wrong() {
    let (sidecar, _redis) = experienced().await;
    let text = sidecar.metrics().await;
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot start promtool: {error}; install it: apt-get install prometheus")
        });
    let mut input = promtool.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[tokio::test]
async fn a_limits_series_exist_before_its_first_decision_and_its_counters_outlive_it() {
    let first = policy("memory", "sliding_log", 1, "1h");
    let sidecar = Sidecar::alone(&first).await;
    let denied = |limit: &str, value: u64| {
        let labels = format!("limit=\"{limit}\",source=\"store\",verdict=\"denied\"");
        format!("sluicegate_decisions_total{{{labels}}} {value}\n")
    };
    assert!(sidecar.metrics().await.contains(&denied("per-key", 0)));
    for _ in 0..2 {
        take(&sidecar, "per-key", "a").await;
    }
    std::fs::write(&sidecar.policy, first.replace("per-key:", "renamed:")).unwrap();
    let has = async |what: &str| sidecar.metrics().await.contains(what);
    eventually("the new limit has its series", async || {
        has(&denied("renamed", 0)).await
    })
    .await;
    assert!(
        has(&denied("per-key", 1)).await,
        "the last denial is not lost"
    );
    assert!(has("top_denied_ratio{limit=\"renamed\"} 0\n").await);
    assert!(
        !has("top_denied_ratio{limit=\"per-key\"}").await,
        "it would stand still"
    );
}

#[tokio::test]
async fn an_idle_sidecar_knows_whether_its_store_is_up() {
    let mut redis = Redis::start().await;
    let text = policy(&redis.url(), "sliding_log", 2, "1h");
    let sidecar = Sidecar::alone(&text).await;
    let is = async |up: f64| sidecar.metric("sluicegate_store_up ").await == up;
    eventually("the store is there", async || is(1.0).await).await;
    redis.kill();
    eventually("the store is away", async || is(0.0).await).await;
    redis.restart().await;
    eventually("the store is there again", async || is(1.0).await).await;
    // Once, whatever its probes found until then.
    let errors = "sluicegate_store_errors_total{kind=\"connection\"}";
    assert_eq!(sidecar.metric(errors).await, 1.0);
}
