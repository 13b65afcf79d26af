//! Istio by its own charts, and ours in the proxies of a workload and of an ingress gateway.
//!
//! The proxy is pilot-agent with Envoy as its project builds it: no package registry has Istio's build.

use std::path::Path;
use std::time::Duration;

use sluicegate_tests::process::eventually_within;

use crate::mesh::{
    Mesh, QUOTA, RELEASE, Release, TIMEOUT, address, manifest, prepare, replace_pods, wait_for,
};
use crate::pages::{Page, PageFor};
use crate::tools::{Tools, cache};
use crate::traffic::Clients;

const PAGE: PageFor = ("mesh.md", "Istio");
const SYSTEM: &str = "istio-system";
const SHOP: &str = "shop";
/// Namespace and release of Istio's gateway chart, as on the page.
const INGRESS: &str = "istio-ingress";
const PROXIES: &str = "istio=ingress";

/// Longest wait for the kubelet to end a proxy that drains.
const ACTS_WITHIN: Duration = Duration::from_secs(180);

/// Envoy's admin port in Istio's proxies.
const ADMIN_PORT: u16 = 15_000;

/// Installs Istio and the chart for a workload, and waits until the workload is ready.
pub async fn workload(tools: &Tools, folder: &Path) -> Mesh {
    let istio = format!("--values {}", values(folder, "values-istiod.yaml"));
    helm(tools, "install", "istio-base", "--create-namespace");
    helm(tools, "install", "istiod", &istio);
    tools.kubectl(&format!("create namespace {SHOP}"));
    tools.kubectl(&format!("label namespace {SHOP} istio-injection=enabled"));
    prepare(tools, SHOP);
    let release = Release::of(folder, "values-istio-workload.yaml");
    release.must_apply(tools, "install", SHOP);
    // The chart's injection template, for istiod.
    let injection = folder.join("values-injection.yaml").display().to_string();
    let map = format!("configmap {RELEASE}-istiod-values --namespace {SHOP}");
    let output = r"--output jsonpath={.data.values\.yaml}";
    let text = tools.kubectl(&format!("get {map} {output}"));
    std::fs::write(&injection, text).expect("a file of our own");
    let both = format!("{istio} --values {injection}");
    helm(tools, "upgrade", "istiod", &both);
    let patch = values(folder, "istio-workload.yaml");
    let app = format!("deployment/app --namespace {SHOP}");
    tools.kubectl(&format!("patch {app} --patch-file {patch}"));
    wait_for(tools, SHOP, "deployment/app");
    two_pods(tools, SHOP, "app=app").await;
    Mesh {
        name: "Istio",
        page: PAGE,
        tools: tools.clone(),
        namespace: SHOP,
        redis: SHOP,
        proxies: (SHOP, "app=app"),
        admin_port: ADMIN_PORT,
        filter: "wasmplugin/sluicegate",
        clients: Clients::of(&address(tools, SHOP, "app")),
        quota: QUOTA,
        release,
    }
}

/// Installs Istio's ingress gateway and, by docs/install/mesh.md, the chart for it; checks what the page checks, and changes
/// the rules to the test's.
pub async fn ingress(tools: &Tools, folder: &Path) -> Mesh {
    tools.kubectl(&format!("create namespace {INGRESS}"));
    // The page's Redis is in `default`.
    prepare(tools, "default");
    let gateway = values(folder, "values-istio-gateway.yaml");
    let chart = cache().join("charts/istio-gateway");
    let more = format!("--namespace {INGRESS} {TIMEOUT} --wait --values {gateway}");
    tools.helm(&format!("install {INGRESS} {} {more}", chart.display()));
    tools.apply(INGRESS, &manifest("istio-ingress.yaml"));
    let page = Page::read(PAGE, folder, &["images.yaml"]);
    page.install(tools, folder);
    two_pods(tools, INGRESS, PROXIES).await;
    page.check(tools, folder);

    let [values, object] = Page::by_route(PAGE);
    tools.apply(INGRESS, &object);
    let release = Release::of(folder, "values-istio-ingress.yaml").with(folder, &values);
    release.must_apply(tools, "upgrade", INGRESS);
    let deployment = format!("deployment/{INGRESS}");
    replace_pods(tools, INGRESS, PROXIES, &deployment);
    Mesh {
        name: "Istio ingress",
        page: PAGE,
        tools: tools.clone(),
        namespace: INGRESS,
        redis: "default",
        proxies: (INGRESS, PROXIES),
        admin_port: ADMIN_PORT,
        filter: "wasmplugin/sluicegate",
        clients: Clients::of(&address(tools, INGRESS, INGRESS)),
        quota: QUOTA,
        release,
    }
}

/// Waits until the pods before a rollout are gone. They have no sidecar: a request gets 503 by `until_rules`, or no answer if its
/// pod ends while it waits for rules.
async fn two_pods(tools: &Tools, namespace: &str, selector: &str) {
    let pods = format!("get pods --namespace {namespace} --selector {selector} --output=name");
    let two = async || tools.kubectl(&pods).lines().count() == 2;
    eventually_within(ACTS_WITHIN, "the pods without a sidecar end", two).await;
}

/// Takes the chart away from the ingress gateway, by the page; the limit is not in force any more.
pub fn uninstall(mesh: &Mesh, folder: &Path) {
    Page::read(PAGE, folder, &[]).remove(&mesh.tools, folder);
}

/// A file of manifests/, filled in and written; its path.
fn values(folder: &Path, name: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, manifest(name)).expect("a file of our own");
    file.display().to_string()
}

/// Installs or upgrades one of Istio's charts.
fn helm(tools: &Tools, verb: &str, chart: &str, more: &str) {
    let path = cache().join("charts").join(chart);
    let more = format!("--namespace {SYSTEM} --wait {TIMEOUT} {more}");
    tools.helm(&format!("{verb} {chart} {} {more}", path.display()));
}
