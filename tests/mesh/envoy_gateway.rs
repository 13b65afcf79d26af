//! Envoy Gateway by its own chart, and ours in front of an application.

use std::path::Path;
use std::time::Duration;

use sluicegate_tests::process::eventually_within;

use crate::cluster::REGISTRY;
use crate::images::TAG;
use crate::mesh::{Mesh, QUOTA, Release, TIMEOUT, address, manifest, prepare, wait_for};
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const SYSTEM: &str = "envoy-gateway-system";
const SHOP: &str = "shop-gateway";
const PROXIES: &str = "gateway.envoyproxy.io/owning-gateway-name=eg";

/// Installs everything and waits until the gateway is ready.
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
    prepare(tools, SHOP, &[]).await;
    let release = Release::of(folder, SHOP, &["rules.yaml", "values-envoy-gateway.yaml"]);
    release
        .apply(tools, "install", SHOP)
        .unwrap_or_else(|failure| panic!("{failure}"));
    tools.apply(SHOP, &manifest("envoy-gateway.yaml", SHOP));
    wait_for(tools, SHOP, "deployment/app");
    let arguments = ["get", "deployment", "--namespace", SYSTEM, "--selector"];
    let deployment = || tools.kubectl(&[&arguments[..], &[PROXIES, "--output=name"]].concat());
    eventually_within(
        Duration::from_secs(120),
        "Envoy Gateway makes a Deployment",
        async || !deployment().is_empty(),
    )
    .await;
    wait_for(tools, SYSTEM, &deployment());
    Mesh {
        name: "Envoy Gateway",
        tools: tools.clone(),
        namespace: SHOP,
        proxies: (SYSTEM, PROXIES),
        admin_port: 19_000,
        filter: "envoyextensionpolicy",
        clients: Clients::of(&address(tools, SYSTEM, &["--selector", PROXIES])),
        quota: QUOTA,
        release,
    }
}
