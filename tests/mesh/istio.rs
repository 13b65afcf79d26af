//! Istio by its own charts, and ours in the proxies of a workload.
//!
//! The proxy is pilot-agent with Envoy as its project builds it: no package registry has Istio's build.

use std::path::Path;

use crate::mesh::{Mesh, RELEASE, Release, TIMEOUT, address, manifest, prepare, wait_for};
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const SYSTEM: &str = "istio-system";
const SHOP: &str = "shop";

/// Installs everything and waits until the workload is ready.
pub async fn install(tools: &Tools, folder: &Path) -> Mesh {
    let istio = folder.join("values-istiod.yaml").display().to_string();
    std::fs::write(&istio, manifest("values-istiod.yaml", SYSTEM)).expect("a file of our own");
    helm(tools, "install", "istio-base", &["--create-namespace"]);
    helm(tools, "install", "istiod", &["--values", &istio]);
    prepare(tools, SHOP, &["istio-injection=enabled"]).await;
    let release = Release::of(folder, SHOP, &["rules.yaml", "values-istio.yaml"]);
    release
        .apply(tools, "install", SHOP)
        .unwrap_or_else(|failure| panic!("{failure}"));
    // The chart's injection template, for istiod.
    let injection = folder.join("values-injection.yaml").display().to_string();
    let name = format!("{RELEASE}-istiod-values");
    let arguments = ["get", "configmap", &name, "--namespace", SHOP, "--output"];
    let text = tools.kubectl(&[&arguments[..], &[r"jsonpath={.data.values\.yaml}"]].concat());
    std::fs::write(&injection, text).expect("a file of our own");
    helm(
        tools,
        "upgrade",
        "istiod",
        &["--values", &istio, "--values", &injection],
    );
    tools.apply(SHOP, &manifest("istio.yaml", SHOP));
    wait_for(tools, SHOP, "deployment/app");
    Mesh {
        name: "Istio",
        tools: tools.clone(),
        namespace: SHOP,
        proxies: (SHOP, "app=app"),
        admin_port: 15_000,
        filter: "wasmplugin",
        clients: Clients::of(&address(tools, SHOP, "")),
        release,
    }
}

/// Installs or upgrades one of Istio's charts.
fn helm(tools: &Tools, verb: &str, chart: &str, more: &[&str]) {
    let path = cache().join("charts").join(chart).display().to_string();
    let arguments = [verb, chart, &path, "--namespace", SYSTEM, "--wait", TIMEOUT];
    tools.helm(&[&arguments[..], more].concat());
}
