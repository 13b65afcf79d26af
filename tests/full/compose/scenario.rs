//! The steps of the test, in order.

use std::path::Path;

use sluicegate_tests::client::{get, post};
use sluicegate_tests::process::eventually;
use sluicegate_tests_full::documents::{bash, blocks, text};

use crate::engine::{Engine, run};
use crate::report::Report;
use crate::traffic::{Clients, Counts};
use crate::{config, grafana, hardening, prometheus, stand_ins};

/// What `up` starts.
const CHAIN: [&str; 4] = ["envoy", "sidecar", "redis", "upstream"];
/// What the profile `monitoring` adds, but for Grafana, which has no package.
const PROMETHEUS: &str = "prometheus";

/// Where docker-compose.yml publishes the sidecar's admin port.
const PAGE: &str = "http://127.0.0.1:9181/";
/// `/readyz`, which also reports the store.
const READY: &str = "http://127.0.0.1:9181/readyz";
const RESET: &str = "http://127.0.0.1:9181/v1/reset";
/// Envoy's admin port, where docker-compose.yml publishes it.
const STATS: &str = "http://127.0.0.1:9901/stats";
const CONFIGURATION: &str = "http://127.0.0.1:9901/config_dump";
/// Until five requests within two seconds are followed by a sixth, on a machine that may stand still for some time.
const ATTEMPTS: usize = 200;

/// Builds the images, starts the services, and stops and restarts some of them.
///
/// # Panics
/// A check fails.
pub async fn scenario(engine: &Engine, folder: &Path, report: &Report) {
    stand_ins::make(engine, folder);
    report.note("images from Debian's packages replace those that users pull");
    engine.compose(&["up", "--build", "--detach"]);
    report
        .note("`up --build` in a clone of this repository has compiled the sidecar and the filter");
    for service in CHAIN {
        is_healthy(engine, service).await;
    }
    follow_the_page();
    report.note("the request of docs/compose.md gets 200 and then 429, with the files of envoy/ as they are");
    let config = config::write(folder).display().to_string();
    let env = engine.clone.join(".env");
    std::fs::write(env, format!("SLUICEGATE_CONFIG={config}\n")).expect("a file of our own");
    engine.compose(&["up", "--detach"]);
    for service in CHAIN {
        is_healthy(engine, service).await;
    }
    let running = engine.docker(&["ps", "--quiet"]);
    assert_eq!(running.lines().count(), CHAIN.len(), "{running}");
    report.note("`up` starts the chain alone; its four services are healthy");
    engine.compose(&["--profile", "monitoring", "up", "--detach", PROMETHEUS]);
    is_healthy(engine, PROMETHEUS).await;
    report.note("`--profile monitoring` adds Prometheus, which is healthy");
    let [envoy, sidecar, redis, upstream] = CHAIN;
    let services = [envoy, sidecar, redis, upstream, PROMETHEUS];
    report.containers(&services.map(|service| hardening::check(engine, service)));

    grafana::check(engine);
    report
        .note("Grafana's service has what its provisioning names (tested without Grafana, which has no package)");
    check_admin_ports().await;
    report.note("the live page and Envoy's statistics answer; a reset and Envoy's configuration are refused");
    report.answers_follow();

    let mut clients = Clients::new();
    let well = with_everything_up(&mut clients, report).await;
    let cut = without_the_sidecar(engine, &mut clients, report).await;
    let (probes, again) = with_a_new_sidecar(engine, &mut clients, report).await;
    let dry = without_redis(engine, &mut clients, report).await;
    let last = with_an_empty_redis(engine, &mut clients, report).await;

    let all = well + cut + probes + again + dry + last;
    prometheus::wait_for_value("sum(sluicegate_denied)", all.denied).await;
    prometheus::wait_for_value("sum(sluicegate_unavailable_denied)", all.unavailable).await;
    report.answers("total", all, "Envoy counts the same 429s and 503s");
    println!();
}

/// What the page tells its reader to type: the chain is up, so its requests are answered, and soon denied.
fn follow_the_page() {
    let page = text("docs/compose.md");
    let mut commands = blocks(&page, "sh").into_iter();
    assert_eq!(commands.next(), Some("docker compose up --build\n"));
    let request = commands.next().expect("a request");
    let mut answers = (0..ATTEMPTS).map(|_| run(&mut bash(request, Path::new("/"))));
    let first = answers.next().expect("an answer");
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    let denied = answers.find(|answer| answer.starts_with("HTTP/1.1 429"));
    let denied = denied.expect("a denial");
    assert!(denied.contains("retry-after: "), "{denied}");
}

async fn is_healthy(engine: &Engine, service: &str) {
    let healthy = async || engine.health(service) == "healthy";
    eventually(&format!("{service} is healthy"), healthy).await;
}

/// Without an admin token, the admin ports are read-only.
async fn check_admin_ports() {
    for (url, expected) in [(PAGE, 200), (STATS, 200), (CONFIGURATION, 403)] {
        assert_eq!(get(url).await.0, expected, "{url}");
    }
    let reset = r#"{"resets":[{"limit":"per-key","key":"anyone"}]}"#;
    assert_eq!(post(RESET, reset).await.0, 403, "{RESET}");
}

async fn with_everything_up(clients: &mut Clients, report: &Report) -> Counts {
    clients.check_that_limits_hold(5).await;
    let counts = clients.take();
    check_sidecar_counts(counts).await;
    prometheus::wait_for_value("sum(sluicegate_denied)", counts.denied).await;
    let besides = "Prometheus has it from sidecar and Envoy";
    report.answers("all is well", counts, besides);
    counts
}

async fn without_the_sidecar(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.kill("sidecar");
    clients.check_answers_without_verdicts().await;
    let counts = clients.take();
    prometheus::wait_for_value("up{job=\"sluicegate\"}", 0).await;
    let allowed = "sum(sluicegate_rule_unavailable_allowed{rule=\"per-key\"})";
    prometheus::wait_for_value(allowed, counts.ok).await;
    let denied = "sum(sluicegate_rule_unavailable_denied{rule=\"closed\"})";
    prometheus::wait_for_value(denied, counts.unavailable).await;
    let besides = "Prometheus: up is 0; Envoy counts both";
    report.answers("the sidecar is killed", counts, besides);
    counts
}

/// Returns the counts of the answers until the sidecar's first verdict, and of those after it.
async fn with_a_new_sidecar(
    engine: &Engine,
    clients: &mut Clients,
    report: &Report,
) -> (Counts, Counts) {
    engine.restart("sidecar");
    clients.wait_for_a_verdict().await;
    let probes = clients.take();
    clients.check_that_limits_hold(3).await;
    let counts = clients.take();
    // The last probe got the sidecar's first verdict.
    check_sidecar_counts(counts + probes).await;
    let besides = "Prometheus counts the same, from 0";
    report.answers("the sidecar is restarted", counts, besides);
    (probes, counts)
}

async fn without_redis(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.kill("redis");
    let reported = async || {
        get(READY)
            .await
            .1
            .contains("the store has not answered for")
    };
    eventually("the sidecar reports that its store is down", reported).await;
    // There is no other sidecar, so this one's share is the whole limit.
    clients.check_that_limits_hold(3).await;
    let counts = clients.take();
    for (verdict, count) in [("admitted", counts.ok), ("denied", counts.denied)] {
        let labels = format!("verdict=\"{verdict}\",source=\"share\"");
        let sum = format!("sum(sluicegate_decisions_total{{{labels}}})");
        prometheus::wait_for_value(&sum, count).await;
    }
    let besides = "/readyz says so; Prometheus has them all with source `share`";
    report.answers("Redis is killed", counts, besides);
    counts
}

async fn with_an_empty_redis(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.restart("redis");
    let reported = async || get(READY).await.1.contains("the store answers");
    eventually("the sidecar reports that its store is up", reported).await;
    clients.wait_for_a_verdict().await;
    clients.check_that_limits_hold(3).await;
    let counts = clients.take();
    report.answers("Redis is restarted, empty", counts, "/readyz says so");
    counts
}

/// Checks that the sidecar's decisions, as Prometheus has them, match what clients saw.
async fn check_sidecar_counts(counts: Counts) {
    for (verdict, count) in [("admitted", counts.ok), ("denied", counts.denied)] {
        let sum = format!("sum(sluicegate_decisions_total{{verdict=\"{verdict}\"}})");
        prometheus::wait_for_value(&sum, count).await;
    }
}
