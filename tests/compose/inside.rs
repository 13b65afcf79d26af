//! The order of things inside the namespaces.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sluicegate_tests::client::{answers, get};
use sluicegate_tests::process::eventually;

use crate::engine::Engine;
use crate::traffic::{Clients, Counts};
use crate::{config, grafana, hardening, seen, stand_ins};

/// All but Grafana, of which there is no package.
const SERVICES: [&str; 5] = ["envoy", "sidecar", "redis", "upstream", "prometheus"];

/// Where docker-compose.yml publishes the sidecar's admin port.
const READY: &str = "http://127.0.0.1:9181/readyz";

/// Requests to each of the two rules while a part is away.
const DURING: u64 = 20;

/// Brings everything up, tries it, takes it down.
pub async fn run(folder: &Path, group: &str) -> ExitCode {
    let started = Instant::now();
    let config = config::write(folder).display().to_string();
    let images = stand_ins::SETTINGS.map(|(name, image)| (name, image.to_owned()));
    let settings = images.into_iter().chain([("SLUICEGATE_CONFIG", config)]);
    let engine = Arc::new(Engine::start(folder, group, settings).await);
    println!(
        "compose: a Docker engine of its own, storage driver {}",
        engine.driver
    );

    // In a task, so that a panic leaves time to tell what the containers have said.
    let shared = Arc::clone(&engine);
    let folder = folder.to_owned();
    let outcome = tokio::spawn(async move { all(&shared, &folder).await }).await;
    let passed = outcome.is_ok();
    if !passed {
        eprintln!("{}", engine.compose(&["ps"]));
        eprintln!(
            "{}",
            engine.compose(&["logs", "--no-color", "--tail", "40"])
        );
    }
    engine.compose(&["down", "--volumes", "--timeout", "2"]);
    let left =
        engine.docker(&["ps", "--all", "--quiet"]) + &engine.docker(&["volume", "ls", "--quiet"]);
    println!(
        "compose: taken down after {:.0} s",
        started.elapsed().as_secs_f64()
    );
    if passed && left.is_empty() {
        ExitCode::SUCCESS
    } else {
        eprintln!(
            "compose: {}",
            if passed {
                "`down` leaves something"
            } else {
                "FAILED"
            }
        );
        ExitCode::FAILURE
    }
}

async fn all(engine: &Engine, folder: &Path) {
    grafana::check(engine);
    stand_ins::make(engine, folder);
    println!(
        "compose: images that stand for what users pull: Debian, Redis, Prometheus, Envoy; none of Grafana"
    );
    engine.compose(&[&["build", "--quiet"][..], &["envoy", "sidecar", "upstream"]].concat());
    println!(
        "compose: built deploy/docker, with the sidecar and the filter that `make build filter` made"
    );
    engine.compose(&[&["up", "--detach"][..], &SERVICES].concat());
    for service in SERVICES {
        eventually(&format!("{service} is healthy"), async || {
            engine.health(service) == "healthy"
        })
        .await;
    }
    println!("\n  service      user    memory   published on 127.0.0.1   health");
    for container in SERVICES.map(|service| hardening::check(engine, service)) {
        println!(
            "  {:10} {:>6} {:>5} MiB   {:22}   healthy",
            container.service,
            container.user,
            container.memory >> 20,
            container.ports.join(" "),
        );
    }
    println!("  no capabilities, no new privileges, images read only: seen in each\n");

    println!(
        "  {:34} {:>5} {:>5} {:>5}   Prometheus agrees",
        "clients were answered", 200, 429, 503
    );
    let mut clients = Clients::new();
    clients.limits_hold(5).await;
    let counts = clients.take();
    agrees(&counts).await;
    seen::comes_to("sum(sluicegate_denied)", counts.denied).await;
    line("all is well", counts, "decisions, Envoy's denials");

    engine.kill("sidecar");
    clients.no_verdict_is_to_be_had(DURING).await;
    let counts = clients.take();
    seen::comes_to("up{job=\"sluicegate\"}", 0).await;
    seen::comes_to(
        "sum(sluicegate_unavailable_allowed)",
        counts.ok,
    )
    .await;
    seen::comes_to(
        "sum(sluicegate_unavailable_denied)",
        counts.unavailable,
    )
    .await;
    line(
        "the sidecar is killed",
        counts,
        "up = 0, Envoy's unavailable_*",
    );

    engine.restart("sidecar");
    clients.a_verdict_comes_again().await;
    // Envoy has answered the probes before that; what the new sidecar counts begins with the first verdict.
    let probes = clients.take();
    clients.limits_hold(3).await;
    let counts = clients.take();
    agrees(&Counts {
        ok: counts.ok + probes.ok,
        denied: counts.denied + probes.denied,
        unavailable: 0,
    })
    .await;
    line("and started again", counts, "decisions, from 0");

    engine.kill("redis");
    eventually("the sidecar is not ready", async || {
        get(READY).await.0 == 503
    })
    .await;
    clients.no_verdict_is_to_be_had(DURING).await;
    let counts = clients.take();
    seen::comes_to(
        "sum(sluicegate_decisions_total{verdict=\"unavailable\"})",
        counts.total(),
    )
    .await;
    line("Redis is killed", counts, "verdict=\"unavailable\"");

    engine.restart("redis");
    eventually("the sidecar is ready", async || answers(READY).await).await;
    clients.a_verdict_comes_again().await;
    clients.limits_hold(3).await;
    let counts = clients.take();
    line("and started again, empty", counts, "");
    println!();
}

/// The sidecar's decisions are what the clients saw.
async fn agrees(counts: &Counts) {
    for (verdict, count) in [("admitted", counts.ok), ("denied", counts.denied)] {
        let sum = format!("sum(sluicegate_decisions_total{{verdict=\"{verdict}\"}})");
        seen::comes_to(&sum, count).await;
    }
}

fn line(what: &str, counts: Counts, agrees: &str) {
    println!(
        "  {what:34} {:>5} {:>5} {:>5}   {agrees}",
        counts.ok, counts.denied, counts.unavailable
    );
}
