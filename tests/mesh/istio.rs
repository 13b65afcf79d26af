//! Istio by its own charts, and ours in the proxies of a workload and of an ingress gateway.
//!
//! The proxy is pilot-agent with Envoy as its project builds it: no package registry has Istio's build.

use std::path::Path;

use crate::mesh::{Mesh, QUOTA, RELEASE, Release, TIMEOUT, address, manifest, prepare, wait_for};
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const SYSTEM: &str = "istio-system";
const SHOP: &str = "shop";
const INGRESS: &str = "ingress";

/// Envoy's admin port in Istio's proxies.
const ADMIN_PORT: u16 = 15_000;

/// Installs Istio and the chart for a workload, and waits until the workload is ready.
pub async fn workload(tools: &Tools, folder: &Path) -> Mesh {
    let istio = values(folder, "values-istiod.yaml");
    helm(
        tools,
        "install",
        "istio-base",
        SYSTEM,
        &["--create-namespace"],
    );
    helm(tools, "install", "istiod", SYSTEM, &["--values", &istio]);
    prepare(tools, SHOP, &["istio-injection=enabled"]).await;
    let release = install(tools, folder, SHOP, "values-istio-workload.yaml");
    // The chart's injection template, for istiod.
    let injection = folder.join("values-injection.yaml").display().to_string();
    let name = format!("{RELEASE}-istiod-values");
    let arguments = ["get", "configmap", &name, "--namespace", SHOP, "--output"];
    let text = tools.kubectl(&[&arguments[..], &[r"jsonpath={.data.values\.yaml}"]].concat());
    std::fs::write(&injection, text).expect("a file of our own");
    let both = ["--values", &istio, "--values", &injection];
    helm(tools, "upgrade", "istiod", SYSTEM, &both);
    let patch = values(folder, "istio-workload.yaml");
    let arguments = ["patch", "deployment/app", "--namespace", SHOP];
    tools.kubectl(&[&arguments[..], &["--patch-file", &patch]].concat());
    wait_for(tools, SHOP, "deployment/app");
    Mesh {
        name: "Istio",
        tools: tools.clone(),
        namespace: SHOP,
        proxies: (SHOP, "app=app"),
        admin_port: ADMIN_PORT,
        filter: "wasmplugin",
        clients: Clients::of(&address(tools, SHOP, &["app"])),
        quota: QUOTA,
        release,
    }
}

/// Installs Istio's ingress gateway and the chart for it, beside a workload.
pub async fn ingress(tools: &Tools, folder: &Path) -> Mesh {
    prepare(tools, INGRESS, &[]).await;
    let release = install(tools, folder, INGRESS, "values-istio-ingress.yaml");
    let gateway = values(folder, "values-istio-gateway.yaml");
    let chart = cache().join("charts/istio-gateway").display().to_string();
    let arguments = ["install", INGRESS, &chart, "--namespace", INGRESS, TIMEOUT];
    tools.helm(&[&arguments[..], &["--wait", "--values", &gateway]].concat());
    tools.apply(INGRESS, &manifest("istio-ingress.yaml", INGRESS));
    wait_for(tools, INGRESS, "deployment/app");
    Mesh {
        name: "Istio ingress",
        tools: tools.clone(),
        namespace: INGRESS,
        proxies: (INGRESS, "istio=ingress"),
        admin_port: ADMIN_PORT,
        filter: "wasmplugin",
        clients: Clients::of(&address(tools, INGRESS, &[INGRESS])),
        quota: QUOTA,
        release,
    }
}

/// Installs our chart.
fn install(tools: &Tools, folder: &Path, namespace: &str, file: &str) -> Release {
    let release = Release::of(folder, namespace, &["rules.yaml", file]);
    release
        .apply(tools, "install", namespace)
        .unwrap_or_else(|failure| panic!("{failure}"));
    release
}

/// A file of manifests/, filled in and written; its path.
fn values(folder: &Path, name: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, manifest(name, SYSTEM)).expect("a file of our own");
    file.display().to_string()
}

/// Installs or upgrades one of Istio's charts.
fn helm(tools: &Tools, verb: &str, chart: &str, namespace: &str, more: &[&str]) {
    let path = cache().join("charts").join(chart).display().to_string();
    let arguments = [
        verb,
        chart,
        &path,
        "--namespace",
        namespace,
        "--wait",
        TIMEOUT,
    ];
    tools.helm(&[&arguments[..], more].concat());
}
