//! The chart with Envoys of its own in front of an application, as docs/install/kubernetes.md says.

use std::path::Path;

use sluicegate_tests::process::repository;

use crate::mesh::{
    Mesh, QUOTA, RELEASE, Release, address, prepare, replace_pods, unprepare, wait_for,
};
use crate::pages::{Page, PageFor};
use crate::tools::Tools;
use crate::traffic::Clients;

const PAGE: PageFor = ("kubernetes.md", "");
/// That of the page.
const NAMESPACE: &str = "default";
const PROXIES: &str = "sluicegate.github.io/release=sluicegate";
const VALUES: &str = "values-kubernetes.yaml";

/// Installs everything by the page, checks what the page checks, and changes the rules to the test's.
pub fn install(tools: &Tools, folder: &Path) -> Mesh {
    prepare(tools, NAMESPACE);
    // The page takes it from the release, under the name that it has there.
    let module = repository("target/filter/sluicegate.wasm");
    let name = concat!("sluicegate-", env!("CARGO_PKG_VERSION"), ".wasm");
    std::fs::copy(&module, folder.join(name))
        .unwrap_or_else(|error| panic!("{}: {error}; make it: make filter", module.display()));
    let page = Page::read(PAGE, folder, &["images.yaml"]);
    page.install(tools, folder);
    page.check(tools, folder);

    let release = Release::of(folder, VALUES);
    release.must_apply(tools, "upgrade", NAMESPACE);
    let deployment = format!("deployment/{RELEASE}");
    wait_for(tools, NAMESPACE, &deployment);
    replace_pods(tools, NAMESPACE, PROXIES, &deployment);
    Mesh {
        name: "Own Envoys",
        page: PAGE,
        tools: tools.clone(),
        namespace: NAMESPACE,
        redis: NAMESPACE,
        proxies: (NAMESPACE, PROXIES),
        admin_port: 9_901,
        filter: "configmap/sluicegate-envoy",
        clients: Clients::of(&address(tools, NAMESPACE, RELEASE)),
        quota: QUOTA,
        release,
    }
}

/// Takes everything away, by the page.
pub fn uninstall(tools: &Tools, folder: &Path) {
    Page::read(PAGE, folder, &[]).remove(tools, folder);
    unprepare(tools, NAMESPACE);
}
