//! What is tried, in the order in which it is tried.

use std::path::Path;

use sluicegate_tests::client::{get, post};
use sluicegate_tests::process::eventually;

use crate::engine::Engine;
use crate::report::Report;
use crate::traffic::{Clients, Counts};
use crate::{grafana, hardening, seen, stand_ins};

/// All but Grafana, of which there is no package.
const SERVICES: [&str; 5] = ["envoy", "sidecar", "redis", "upstream", "prometheus"];

/// Where docker-compose.yml publishes the sidecar's admin port.
const PAGE: &str = "http://127.0.0.1:9181/";
/// It tells of the store too.
const READY: &str = "http://127.0.0.1:9181/readyz";
const RESET: &str = "http://127.0.0.1:9181/v1/reset";
/// And Envoy's.
const STATS: &str = "http://127.0.0.1:9901/stats";
const CONFIGURATION: &str = "http://127.0.0.1:9901/config_dump";

/// Builds, brings up, and has parts go and come back.
///
/// # Panics
/// Something is not as it was promised.
pub async fn run(engine: &Engine, folder: &Path, report: &Report) {
    stand_ins::make(engine, folder);
    report.note("images stand for those that users pull: made of packages");
    engine.compose(&["build", "--quiet", "envoy", "sidecar", "upstream"]);
    report.note("deploy/docker is built, with what `make debug filter` compiled");
    engine.compose(&[&["up", "--detach"][..], &SERVICES].concat());
    for service in SERVICES {
        let healthy = async || engine.health(service) == "healthy";
        eventually(&format!("{service} is healthy"), healthy).await;
    }
    report.note("all services but Grafana are up and healthy");
    report.containers(&SERVICES.map(|service| hardening::check(engine, service)));

    grafana::check(engine);
    report
        .note("Grafana, of which there is no package: its service has what its provisioning names");
    the_admin_ports_only_show().await;
    report.note("the live page and Envoy's statistics answer; a reset and Envoy's configuration are refused");
    report.answers_follow();

    let mut clients = Clients::new();
    let well = all_is_well(&mut clients, report).await;
    let cut = without_the_sidecar(engine, &mut clients, report).await;
    let (probes, again) = with_a_new_sidecar(engine, &mut clients, report).await;
    let dry = without_redis(engine, &mut clients, report).await;
    let last = with_an_empty_redis(engine, &mut clients, report).await;

    let all = well + cut + probes + again + dry + last;
    seen::comes_to("sum(sluicegate_denied)", all.denied).await;
    seen::comes_to("sum(sluicegate_unavailable_denied)", all.unavailable).await;
    report.answers("in all", all, "Envoy counts the same 429s and 503s");
    println!();
}

/// Whoever reaches them may look, and change nothing: no token is set.
async fn the_admin_ports_only_show() {
    for (url, expected) in [(PAGE, 200), (STATS, 200), (CONFIGURATION, 403)] {
        assert_eq!(get(url).await.0, expected, "{url}");
    }
    let reset = r#"{"resets":[{"limit":"per-key","key":"anyone"}]}"#;
    assert_eq!(post(RESET, reset).await.0, 403, "{RESET}");
}

async fn all_is_well(clients: &mut Clients, report: &Report) -> Counts {
    clients.limits_hold(5).await;
    let counts = clients.take();
    the_sidecar_says(counts).await;
    seen::comes_to("sum(sluicegate_denied)", counts.denied).await;
    let besides = "Prometheus has it from sidecar and Envoy";
    report.answers("all is well", counts, besides);
    counts
}

async fn without_the_sidecar(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.kill("sidecar");
    clients.no_verdict_is_to_be_had().await;
    let counts = clients.take();
    seen::comes_to("up{job=\"sluicegate\"}", 0).await;
    let allowed = "sum(sluicegate_rule_unavailable_allowed{rule=\"per-key\"})";
    seen::comes_to(allowed, counts.ok).await;
    let denied = "sum(sluicegate_rule_unavailable_denied{rule=\"closed\"})";
    seen::comes_to(denied, counts.unavailable).await;
    let besides = "Prometheus: up is 0; Envoy counts both";
    report.answers("the sidecar is killed", counts, besides);
    counts
}

/// The answers until its first verdict, and those from then on.
async fn with_a_new_sidecar(
    engine: &Engine,
    clients: &mut Clients,
    report: &Report,
) -> (Counts, Counts) {
    engine.restart("sidecar");
    clients.a_verdict_comes_again().await;
    let probes = clients.take();
    clients.limits_hold(3).await;
    let counts = clients.take();
    // Its first verdict was the last probe's.
    the_sidecar_says(counts + probes).await;
    let besides = "Prometheus counts the same, from 0";
    report.answers("it is started again", counts, besides);
    (probes, counts)
}

async fn without_redis(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.kill("redis");
    let told = async || get(READY).await.1.contains("the store does not answer");
    eventually("the sidecar says that its store is away", told).await;
    // This sidecar's share is the whole limit: there is no other.
    clients.limits_hold(3).await;
    let counts = clients.take();
    for (verdict, count) in [("admitted", counts.ok), ("denied", counts.denied)] {
        let labels = format!("verdict=\"{verdict}\",source=\"share\"");
        let sum = format!("sum(sluicegate_decisions_total{{{labels}}})");
        seen::comes_to(&sum, count).await;
    }
    let besides = "/readyz says so; Prometheus counts all as decided by share";
    report.answers("Redis is killed", counts, besides);
    counts
}

async fn with_an_empty_redis(engine: &Engine, clients: &mut Clients, report: &Report) -> Counts {
    engine.restart("redis");
    let told = async || get(READY).await.1.contains("the store answers");
    eventually("the sidecar says that its store is back", told).await;
    clients.a_verdict_comes_again().await;
    clients.limits_hold(3).await;
    let counts = clients.take();
    report.answers("it is started again, empty", counts, "/readyz says so");
    counts
}

/// Its decisions, as Prometheus has them, are what clients saw.
async fn the_sidecar_says(counts: Counts) {
    for (verdict, count) in [("admitted", counts.ok), ("denied", counts.denied)] {
        let sum = format!("sum(sluicegate_decisions_total{{verdict=\"{verdict}\"}})");
        seen::comes_to(&sum, count).await;
    }
}
