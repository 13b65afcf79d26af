//! The live page in a real browser on a real chain: this file starts Envoy, sidecar, Redis and traffic. `run.py` drives
//! Chromium, checks what the page shows, and asks this file line by line to change the chain.

mod rebound;
mod traffic;
mod wire;

use std::process::Stdio;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::policy::{Policy, pushed, with_rules};
use sluicegate_tests::process::repository;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{self, Sidecar};
use sluicegate_tests::upstream;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use self::traffic::Traffic;

/// Time limit of all steps together, which normally take two minutes.
const PATIENCE: Duration = Duration::from_secs(360);

/// The abusive client exceeds the first limit, no client the second, and only "deny strict" uses the third. `store_timeout` is short, because the page
/// shows an outage only after it.
fn policy(redis: &str, quota: u64) -> String {
    let limit = |algorithm: &str, windows: &str| {
        format!("algorithm: {algorithm}, when_store_is_down: deny, windows: [{windows}]")
    };
    let both = format!("{{ quota: {quota}, per: 2s }}, {{ quota: 100000, per: 1h }}");
    let search = limit("token_bucket", "{ quota: 1000, per: 1s, burst: 2000 }");
    let limits = Policy::on(redis)
        .timeout("250ms")
        .limit("per-client", &limit("sliding_log", &both))
        .limit("search", &search)
        .limit("strict", &limit("sliding_log", "{ quota: 1, per: 1h }"))
        .limit("uploads", &limit("concurrency", "{ quota: 9, per: 1h }"))
        .text();
    let key = json!([{ "header": "x-api-key" }]);
    let rules = json!([
        { "name": "clients", "checks": [{ "limit": "per-client", "key": key }], "when_unavailable": "allow" },
        { "name": "search", "match": { "path_prefix": "/search" },
          "checks": [{ "limit": "search", "key": key }], "when_unavailable": "deny" },
    ]);
    with_rules(&limits, &rules)
}

fn plugin() -> Value {
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("1s");
    plugin
}

/// Asks the sidecar for two units of a limit, without an Envoy.
async fn decide(sidecar: &Sidecar, limit: &str) -> Value {
    let check = json!({ "checks": [{ "limit": limit, "key": "k" }] });
    sidecar.answer(json!([check, check])).await
}

/// Reserves units that nobody settles meanwhile.
async fn reserve(sidecar: &Sidecar) -> Value {
    let check = json!({ "limit": "per-client", "key": "r", "cost": 2, "within_ms": 600_000 });
    sidecar.answer(json!([{ "checks": [check] }])).await
}

/// Adds two events for each override that is set and removed.
async fn set_and_remove_overrides(sidecar: &Sidecar) {
    let quota = json!({ "limit": "strict", "key": "k", "quota": 2 }).to_string();
    let none = json!({ "limit": "strict", "key": "k" }).to_string();
    for _ in 0..10 {
        for (method, body) in [(Method::PUT, &quota), (Method::DELETE, &none)] {
            let (status, answer) = sidecar.change_override(method, body.clone()).await;
            assert_eq!(status, 200, "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_an_engineer_what_happens() {
    let mut redis = Redis::start().await;
    let mut sidecar = Sidecar::alone(&policy(&redis.url(), traffic::QUOTA)).await;
    let upstream = upstream::start().await;
    let envoy = Envoy::asking(sidecar.port)
        .upstream(upstream)
        .plugin(plugin())
        .alone()
        .await;
    let mut traffic = Traffic::default();
    let mut quota = traffic::QUOTA;

    let mut browser = Command::new(repository(".tools/browser/bin/python"))
        .arg(repository("tests/full/page/run.py"))
        .arg(sidecar.admin("/"))
        .arg(repository("target/page"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("cannot start the browser's Python: {error}; install it: tests/setup")
        });
    let mut answers = browser.stdin.take().unwrap();
    let mut asked = BufReader::new(browser.stdout.take().unwrap()).lines();

    let looked = async {
        while let Some(line) = asked.next_line().await.unwrap() {
            let mut answer = json!(null);
            match line.as_str() {
                "attack" => traffic.attack(envoy.url("/search")),
                "calm" => traffic.calm(envoy.url("/search")),
                "stop traffic" => traffic.stop(),
                "count" => answer = traffic.count(),
                "kill redis" => redis.kill(),
                "start redis" => redis.restart().await,
                "kill sidecar" => sidecar.kill(),
                "start sidecar" => sidecar.restart().await,
                "stop sidecar" => sidecar.signal("STOP"),
                "continue sidecar" => sidecar.signal("CONT"),
                "deny strict" => answer = decide(&sidecar, "strict").await,
                "reserve" => answer = reserve(&sidecar).await,
                "hold slots" => answer = decide(&sidecar, "uploads").await,
                "unknown limit" => answer = decide(&sidecar, "nowhere").await,
                "change overrides" => set_and_remove_overrides(&sidecar).await,
                line if line.starts_with("run sluicegate ") => {
                    let (status, said) =
                        sidecar::command(line.trim_start_matches("run sluicegate "));
                    assert_eq!(status, Some(0), "{line}: {said}");
                }
                "signal sidecar" => {
                    sidecar.signal("TERM");
                    sidecar.wait().await;
                }
                "good policy" => {
                    quota += 1;
                    std::fs::write(&sidecar.policy, policy(&redis.url(), quota)).unwrap();
                }
                // Shown as markup, this name would run as a script.
                "hostile policy" => {
                    let text = "limits: { '<img src=x onerror=document.title=666>': { algorithm: sliding_log, windows: [] } }";
                    std::fs::write(&sidecar.policy, text).unwrap();
                }
                line => {
                    println!("{line}");
                    continue;
                }
            }
            let answer = format!("{answer}\n");
            answers.write_all(answer.as_bytes()).await.unwrap();
        }
        browser.wait().await.unwrap()
    };
    let status = tokio::time::timeout(PATIENCE, looked).await;
    let status = status.expect("the browser finishes in time");
    assert!(status.success(), "run.py: see above; {status}");
}
