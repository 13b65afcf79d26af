//! Envoy Gateway by its own chart, and ours in front of an application, as docs/install/mesh.md says.

use std::path::Path;
use std::time::Duration;

use sluicegate_tests::process::eventually_within;

use crate::cluster::REGISTRY;
use crate::images::TAG;
use crate::mesh::{
    Mesh, QUOTA, Release, TIMEOUT, address, manifest, prepare, replace_pods, unprepare, wait_for,
};
use crate::pages::{Page, PageFor};
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const PAGE: PageFor = ("mesh.md", "Envoy Gateway");
const SYSTEM: &str = "envoy-gateway-system";
/// That of the page.
const NAMESPACE: &str = "default";
const PROXIES: &str = "gateway.envoyproxy.io/owning-gateway-name=eg";
const VALUES: &str = "values-envoy-gateway.yaml";

/// Longest wait for Envoy Gateway to act.
const ACTS_WITHIN: Duration = Duration::from_secs(120);

/// Installs everything by the page, checks what the page checks, and changes the rules to the test's.
pub async fn install(tools: &Tools, folder: &Path) -> Mesh {
    let chart = cache().join("charts/gateway-helm");
    let image = "deployment.envoyGateway.image";
    tools.helm(&format!(
        "install eg {} --namespace {SYSTEM} --create-namespace --wait {TIMEOUT}
         --set config.envoyGateway.extensionApis.enableEnvoyPatchPolicy=true
         --set {image}.repository={REGISTRY}/gateway --set {image}.tag={TAG}",
        chart.display()
    ));
    prepare(tools, NAMESPACE);
    let page = Page::read(PAGE, folder, &["images.yaml", VALUES]);
    page.install(tools, folder);
    tools.apply(NAMESPACE, &manifest("envoy-gateway.yaml"));
    let proxies = format!("--namespace {SYSTEM} --selector {PROXIES}");
    let deployment = || tools.kubectl(&format!("get deployment {proxies} --output=name"));
    let is_there = async || !deployment().is_empty();
    eventually_within(ACTS_WITHIN, "the proxies' Deployment", is_there).await;
    let deployment = deployment();
    wait_for(tools, SYSTEM, &deployment);
    let gateway = format!("gateway/eg --namespace {NAMESPACE} {TIMEOUT}");
    tools.kubectl(&format!("wait --for=condition=Programmed {gateway}"));
    page.check(tools, folder);

    let [values, object] = Page::by_route(PAGE);
    tools.apply(NAMESPACE, &object);
    let release = Release::of(folder, VALUES).with(folder, &values);
    release.must_apply(tools, "upgrade", NAMESPACE);
    replace_pods(tools, SYSTEM, PROXIES, &deployment);
    Mesh {
        name: "Envoy Gateway",
        page: PAGE,
        tools: tools.clone(),
        namespace: NAMESPACE,
        redis: NAMESPACE,
        proxies: (SYSTEM, PROXIES),
        admin_port: 19_000,
        filter: "envoyextensionpolicy/sluicegate",
        clients: Clients::of(&address(tools, SYSTEM, &format!("--selector {PROXIES}"))),
        quota: QUOTA,
        release,
    }
}

/// Takes everything away, by the page.
pub fn uninstall(tools: &Tools, folder: &Path) {
    Page::read(PAGE, folder, &[]).remove(tools, folder);
    unprepare(tools, NAMESPACE);
}
