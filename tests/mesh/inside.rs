//! Runs inside the namespaces: starts the cluster, runs both meshes, reports.

use std::path::Path;
use std::process::ExitCode;

use crate::cluster::Cluster;

/// Starts everything and runs all scenarios.
pub async fn run(folder: &Path, group: &str) -> ExitCode {
    let mut cluster = Cluster::start(folder, group).await;
    cluster.wait_for_node().await;
    println!("{}", cluster.tools.kubectl(&["get", "nodes"]));
    ExitCode::SUCCESS
}
