//! Runs inside the namespaces: starts an engine, runs the scenario, and ends both.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::report::Report;
use crate::{scenario, stand_ins};

/// Lines of each container's log to show after a failure.
const LOG_LINES: &str = "40";

/// Starts everything, runs the scenario, takes everything down.
pub async fn run(folder: &Path, group: &str) -> ExitCode {
    let report = Report::start();
    let images = stand_ins::SETTINGS.map(|(name, image)| (name, image.to_owned()));
    let engine = Arc::new(Engine::start(folder, group, images).await);
    report.note(&format!(
        "a Docker engine of its own, storage driver {}",
        engine.driver
    ));

    // In a task, so that the containers' logs can be printed after a panic.
    let (shared, folder) = (Arc::clone(&engine), folder.to_owned());
    let scenario = async move { scenario::scenario(&shared, &folder, &report).await };
    let passed = tokio::spawn(scenario).await.is_ok();
    if !passed {
        // Envoy writes its access log every ten seconds.
        tokio::time::sleep(Duration::from_secs(11)).await;
        eprintln!("{}", engine.compose(&["ps"]));
        eprintln!("{}", engine.health_checks());
        let logs = ["logs", "--no-color", "--tail", LOG_LINES];
        eprintln!("{}", engine.compose(&logs));
    }
    let down = ["--profile", "monitoring", "down", "--volumes"];
    engine.compose(&[&down[..], &["--timeout", "2"]].concat());
    let left =
        engine.docker(&["ps", "--all", "--quiet"]) + &engine.docker(&["volume", "ls", "--quiet"]);
    report.note("everything is taken down");
    if !passed {
        eprintln!("compose: FAILED");
    } else if !left.is_empty() {
        eprintln!("compose: `docker-compose down` leaves {left}");
    } else {
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}
