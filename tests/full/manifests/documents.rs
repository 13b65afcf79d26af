//! The pages of docs/install for Kubernetes: a shell runs their commands, with a `helm` that renders this chart and a
//! `kubectl` that answers what the page asks for. `make mesh` installs the same way in a real cluster.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::process::{self, repository, write_program};
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::{blocks, install_page, text, with_path};

use super::envoy::Chain;
use super::{ci, valid};

/// A page, and the proxy for which it is read.
const ENVOY_GATEWAY: (&str, &str) = ("mesh.md", "Envoy Gateway");
const ISTIO: (&str, &str) = ("mesh.md", "Istio");
const KUBERNETES: (&str, &str) = ("kubernetes.md", "");

/// Renders the charts that its commands install, into a file for each command. Other charts are only read for their values.
const HELM: &str = r#"#!/bin/sh
set -eu
case "$1 $2 $3" in
  *" sluicegate oci://ghcr.io/sluicegate/charts/sluicegate")
    shift 3
    [ "$1 $2" = "--version 0.1.0" ]
    shift 2
    n=$(ls rendered-* 2>/dev/null | wc -l)
    exec "$REAL_HELM" template sluicegate "$CHART" --kube-version 1.36.0 "$@" >"rendered-$n" ;;
  "get metadata istiod") printf 'NAME: istiod\nVERSION: 1.30.0\n' ;;
  "upgrade istiod istio/istiod") [ "$4 $5" = "--version 1.30.0" ] ;;
  *) echo "helm $*: the test knows no such command" >&2; exit 1 ;;
esac
"#;

/// Answers from what was rendered.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
case "$*" in
  *" create secret generic sluicegate-redis --from-literal=url="*) ;;
  *" create configmap sluicegate-filter --from-file=sluicegate.wasm=$FILTER") ;;
  *" get configmap sluicegate-istiod-values --output jsonpath={.data.values\.yaml}") cat istiod-values ;;
  *" rollout status deployment "*) ;;
  *" patch deployment istio-ingress --patch "*) for patch; do :; done; echo "$patch" >patch.json ;;
  *) echo "kubectl $*: the test knows no such command" >&2; exit 1 ;;
esac
"#;

/// Runs a page's commands, but for those that need a gateway that answers; returns what `helm` rendered, in order.
fn run(page: (&str, &str), folder: &Path) -> Vec<String> {
    for (name, script) in [("helm", HELM), ("kubectl", KUBECTL)] {
        write_program(&folder.join(name), script);
    }
    let text = install_page(page);
    let blocks = blocks(&text, "sh");
    // How to see the 429s, and how to remove everything.
    let check = blocks.iter().position(|block| block.contains("curl "));
    for block in &blocks[..check.expect("how to see the 429s")] {
        let mut shell = Command::new("sh");
        shell.args(["-euc", block]).current_dir(folder);
        with_path(&mut shell, folder.display());
        let helm = repository(".tools/helm").canonicalize();
        shell.env("REAL_HELM", helm.expect(chart::INSTALL));
        shell.env("CHART", repository("deploy/helm/sluicegate"));
        shell.env("FILTER", released_filter());
        process::run(&mut shell, "sh");
        istiod_values(folder);
    }
    let rendered = (0..).map(|n| std::fs::read_to_string(folder.join(format!("rendered-{n}"))));
    rendered.map_while(Result::ok).collect()
}

/// The name of the filter's file in a release.
pub fn released_filter() -> String {
    let page = text("docs/releases.md");
    let row = page.lines().find(|line| line.ends_with("` | the filter |"));
    let name = row.and_then(|row| row.split('`').nth(1));
    let name = name.expect("docs/releases.md names the filter's file");
    name.replace("VERSION", env!("CARGO_PKG_VERSION"))
}

/// Puts the template for istiod where `kubectl` finds it.
fn istiod_values(folder: &Path) {
    let Ok(rendered) = std::fs::read_to_string(folder.join("rendered-0")) else {
        return;
    };
    for manifest in chart::manifests(&rendered) {
        if manifest["metadata"]["name"] == "sluicegate-istiod-values" {
            let values = manifest["data"]["values.yaml"].as_str().unwrap();
            std::fs::write(folder.join("istiod-values"), values).unwrap();
        }
    }
}

#[test]
fn the_pages_install_what_the_schemas_allow() {
    let gateway = "EnvoyExtensionPolicy EnvoyProxy GatewayClass";
    for (page, kinds) in [
        (ENVOY_GATEWAY, gateway),
        (ISTIO, "WasmPlugin ServiceEntry"),
        (KUBERNETES, "ConfigMap"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let rendered = run(page, folder.path());
        assert!(!rendered.is_empty(), "{page:?}");
        for text in &rendered {
            valid::conforms(text).unwrap_or_else(|said| panic!("{page:?}: {said}"));
            let (_, said) = ci::check(text);
            assert!(said.contains("0 errors, 0 warnings"), "{page:?}: {said}");
            let manifests = chart::manifests(text);
            for kind in kinds.split(' ') {
                let is_there = manifests.iter().any(|manifest| manifest["kind"] == kind);
                assert!(is_there, "{page:?}: {kind}");
            }
        }
    }
}

#[test]
fn istios_page_gives_istiod_and_the_pods_what_they_need() {
    let folder = tempfile::tempdir().unwrap();
    run(ISTIO, folder.path());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let values: Value = serde_saphyr::from_str(&read("istiod.yaml")).unwrap();
    assert!(values["sidecarInjectorWebhook"]["templates"]["sluicegate.istio-ingress"].is_string());
    let patch: Value = serde_json::from_str(&read("patch.json")).unwrap();
    let annotations = &patch["spec"]["template"]["metadata"]["annotations"];
    let templates = &annotations["inject.istio.io/templates"];
    assert_eq!(*templates, "gateway,sluicegate.istio-ingress");
}

/// The last page's Envoy, as its commands deploy it, answers what the page says.
#[tokio::test]
async fn the_envoy_of_the_page_on_kubernetes_answers_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let rendered = run(KUBERNETES, folder.path());
    let manifests = chart::manifests(rendered.last().expect("the page's second release"));
    let file = |name, file| chart::file(&manifests, name, file);
    let values = json!({ "policy": file("sluicegate-policy", "policy.yaml") });
    let chain = Chain::of(file("sluicegate-envoy", "envoy.yaml"), &values).await;
    chain.limits().await;
}
