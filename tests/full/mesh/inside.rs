//! Runs inside the namespaces: starts the cluster, runs own Envoys and both meshes, reports.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cluster::Cluster;
use crate::report::Report;
use crate::tools::Tools;
use crate::{envoy_gateway, images, istio, kubernetes, scenarios, translated, versions};

/// Keeps everything running after a failure.
const HOLD: &str = "SLUICEGATE_MESH_HOLD";
/// Runs one only.
const ONLY: &str = "SLUICEGATE_MESH_ONLY";
const ALL: [&str; 4] = ["kubernetes", "envoy-gateway", "istio", "istio-ingress"];

/// Starts everything and runs all scenarios.
pub async fn run(folder: &Path, group: &str) -> ExitCode {
    let report = Report::start();
    let mut cluster = Cluster::start(folder, group).await;
    report.note("the control plane runs");
    images::push(folder);
    cluster.wait_for_node().await;
    report.note("the images are pushed, the node is ready");

    // In a task, so that the pods' logs can be printed after a panic.
    let (tools, folder) = (cluster.tools.clone(), folder.to_owned());
    let meshes = tokio::spawn(meshes(tools.clone(), folder.clone(), report));
    if meshes.await.is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{}\n{}", cluster.logs(), state(&tools));
    eprintln!("mesh: FAILED");
    if std::env::var_os(HOLD).is_some() {
        eprintln!(
            "mesh: everything keeps running until Ctrl-C. To look at it: nsenter --net --mount --pid --target \
             $(pgrep --full --newest 'mesh inside {}'), with KUBECONFIG={}",
            folder.display(),
            folder.join("node/kubeconfig").display()
        );
        std::future::pending::<()>().await;
    }
    ExitCode::FAILURE
}

async fn meshes(tools: Tools, folder: PathBuf, mut report: Report) {
    report.version("Kubernetes", &versions::kubernetes(&tools));
    let only = std::env::var(ONLY).unwrap_or_default();
    let known = only.is_empty() || ALL.contains(&only.as_str());
    assert!(known, "{ONLY}={only}: it has to be one of {ALL:?}");
    let runs = |name: &str| name.starts_with(&only);
    if runs("kubernetes") {
        let mut mesh = kubernetes::install(&tools, &folder);
        report.note("the chart and its Envoys are installed by docs/install/kubernetes.md");
        scenarios::run_without_mesh(&mut mesh, &mut report).await;
        kubernetes::uninstall(&tools, &folder);
        report.note("own Envoys: the chart is uninstalled, by the page");
    }
    if runs("envoy-gateway") {
        let mut mesh = envoy_gateway::install(&tools, &folder).await;
        report.version("Envoy Gateway", &versions::pinned("envoy_gateway"));
        report.version("Envoy under Envoy Gateway", &versions::envoy(&mesh));
        report.note("Envoy Gateway and the chart are installed by docs/install/mesh.md");
        translated::capture(&mesh, "envoy-gateway");
        scenarios::run_with_routes(&mut mesh, &mut report).await;
        envoy_gateway::uninstall(&tools, &folder);
        report.note("Envoy Gateway: the chart is uninstalled, by the page");
    }
    if runs("istio-ingress") {
        let mut mesh = istio::workload(&tools, &folder).await;
        report.version("Istio", &versions::pinned("istio"));
        report.version("Envoy under Istio", &versions::envoy(&mesh));
        report.note("Istio, the chart and an application are installed");
        translated::capture(&mesh, "istio-workload");
        if only != "istio-ingress" {
            scenarios::run(&mut mesh, &mut report).await;
        }
        let mut mesh = istio::ingress(&tools, &folder).await;
        report.note("Istio ingress: the chart is installed by docs/install/mesh.md");
        translated::capture(&mesh, "istio");
        scenarios::run_without_waiting(&mut mesh, &mut report).await;
        istio::uninstall(&mesh, &folder);
        scenarios::not_limited(&mesh).await;
        report.note("Istio ingress: the chart is uninstalled, by the page");
    }
    if only.is_empty() && translated::writes() {
        report.write_page();
    }
}

/// Pods, events and logs, for a failure.
fn state(tools: &Tools) -> String {
    let commands = [
        "pods --output=wide",
        "events --field-selector=type=Warning",
        "services",
    ];
    let get = |what| tools.try_kubectl(&format!("get --all-namespaces {what}"));
    let printed = commands.map(|what| get(what).unwrap_or_else(|failure| failure));
    printed.join("\n\n")
}
