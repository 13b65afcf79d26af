//! The live page in a real browser on a real chain: this file starts Envoy, sidecar, Redis and traffic. `run.py` drives
//! Chromium, checks what the page shows, and asks this file line by line to change the chain.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod traffic;
mod wire;

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::repository;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::traffic::Traffic;

/// Time limit of all steps together, which normally take less than a minute.
const PATIENCE: Duration = Duration::from_secs(240);

/// Two limits: the abusive client exceeds the first, no client the second. `store_timeout` is short, because the page
/// shows an outage only after it.
fn policy(redis: &str, quota: u64) -> String {
    format!(
        "store: {redis}\nstore_timeout: 250ms\nlimits:\n\
         \x20 per-client:\n    algorithm: sliding_log\n    when_store_is_down: deny\n    windows: [{{ quota: {quota}, per: 2s }}, {{ quota: 100000, per: 1h }}]\n\
         \x20 search:\n    algorithm: token_bucket\n    when_store_is_down: deny\n    windows: [{{ quota: 1000, per: 1s, burst: 2000 }}]\n"
    )
}

fn plugin() -> serde_json::Value {
    let key = json!([{ "header": "x-api-key" }]);
    json!({ "sidecar": { "cluster": "sluicegate", "timeout": "1s" }, "rules": [
        { "name": "clients", "checks": [{ "limit": "per-client", "key": key }], "when_unavailable": "allow" },
        { "name": "search", "match": { "path_prefix": "/search" },
          "checks": [{ "limit": "search", "key": key }], "when_unavailable": "deny" },
    ] })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_an_engineer_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let mut redis = Redis::start().await;
    let mut sidecar = Sidecar::start(&policy(&redis.url(), traffic::QUOTA), folder.path()).await;
    let upstream = upstream::start().await;
    let envoy = Envoy::start(folder.path(), sidecar.port, upstream, Some(plugin())).await;
    let mut traffic = Traffic::default();
    let mut quota = traffic::QUOTA;

    let mut browser = Command::new(repository(".tools/browser/bin/python"))
        .arg(repository("tests/page/run.py"))
        .arg(format!("http://127.0.0.1:{}/", sidecar.admin_port))
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
