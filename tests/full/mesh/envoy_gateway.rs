//! Envoy Gateway by its own chart, and ours in front of an application, as docs/install/envoy-gateway.md says.

use std::path::Path;
use std::time::Duration;

use sluicegate_tests::process::eventually_within;

use crate::cluster::REGISTRY;
use crate::images::TAG;
use crate::mesh::{
    Mesh, QUOTA, Release, TIMEOUT, address, manifest, prepare, replace_pods, unprepare, wait_for,
};
use crate::pages::Page;
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const PAGE: &str = "envoy-gateway.md";
const SYSTEM: &str = "envoy-gateway-system";
/// That of the page.
const NAMESPACE: &str = "default";
const PROXIES: &str = "gateway.envoyproxy.io/owning-gateway-name=eg";
const VALUES: &str = "values-envoy-gateway.yaml";

/// Longest wait for Envoy Gateway to act.
const ACTS_WITHIN: Duration = Duration::from_secs(120);

/// Installs everything by the page, checks what the page checks, and changes the rules to the test's.
pub async fn install(tools: &Tools, folder: &Path) -> Mesh {
    let chart = cache().join("charts/gateway-helm").display().to_string();
    tools.helm(&[
        "install",
        "eg",
        &chart,
        "--namespace",
        SYSTEM,
        "--create-namespace",
        "--set",
        "config.envoyGateway.extensionApis.enableEnvoyPatchPolicy=true",
        "--set",
        &format!("deployment.envoyGateway.image.repository={REGISTRY}/gateway"),
        "--set",
        &format!("deployment.envoyGateway.image.tag={TAG}"),
        "--wait",
        TIMEOUT,
    ]);
    prepare(tools, NAMESPACE);
    let page = Page::read(PAGE, folder, &["images.yaml", VALUES]);
    page.install(tools, folder);
    tools.apply(NAMESPACE, &manifest("envoy-gateway.yaml"));
    let arguments = ["get", "deployment", "--namespace", SYSTEM, "--selector"];
    let deployment = || tools.kubectl(&[&arguments[..], &[PROXIES, "--output=name"]].concat());
    eventually_within(ACTS_WITHIN, "the proxies' Deployment", async || {
        !deployment().is_empty()
    })
    .await;
    let deployment = deployment();
    wait_for(tools, SYSTEM, &deployment);
    let gateway = ["gateway/eg", "--namespace", NAMESPACE, TIMEOUT];
    tools.kubectl(&[&["wait", "--for=condition=Programmed"], &gateway[..]].concat());
    page.check(tools, folder);

    let release = Release::of(folder, VALUES);
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
        clients: Clients::of(&address(tools, SYSTEM, &["--selector", PROXIES])),
        quota: QUOTA,
        release,
    }
}

/// Takes everything away, by the page.
pub fn uninstall(tools: &Tools, folder: &Path) {
    Page::read(PAGE, folder, &[]).remove(tools, folder);
    unprepare(tools, NAMESPACE);
}
