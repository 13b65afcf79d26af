//! What `sluicegate render` prints for a mesh is what the chart makes, without what is Helm's.

use std::fs;

use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar;
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::is_up_to_date;

use super::valid::conforms;

/// Helm's own lines.
const OF_HELM: [&str; 3] = [
    "# Source: ",
    "    app.kubernetes.io/managed-by: ",
    "    helm.sh/chart: ",
];

/// Written above the manifests.
const HEAD: &str = "\
# Sluicegate for PROXY, as its chart makes it: docs/install/mesh.md says what is left to do.
# Edit what you have otherwise: the images, whom the filter is for, and the `pepper`. Then: kubectl apply --filename FILE
";

/// What the chart makes of a file of values, but the hook that checks the policy.
fn made(kind: &str) -> String {
    let (chart, values) = (
        repository("deploy/helm/sluicegate"),
        repository(&format!("tests/full/manifests/values/{kind}.yaml")),
    );
    let text = chart::template(&chart, "NAMESPACE", &[&values], &[]).unwrap();
    let documents = text
        .split("---\n")
        .filter(|document| !document.trim().is_empty());
    let documents = documents.filter(|document| !document.contains("helm.sh/hook"));
    let documents = documents.map(|document| {
        let lines = document
            .lines()
            .filter(|line| !OF_HELM.iter().any(|start| line.starts_with(start)));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    });
    HEAD.replace("PROXY", kind) + &documents.collect::<Vec<_>>().join("---\n")
}

fn sluicegate(words: &str) -> String {
    let (status, printed) = sidecar::command(words);
    assert_eq!(status, Some(0), "{words}: {printed}");
    printed
}

#[test]
fn manifests_for_a_mesh_are_those_of_the_chart_and_fit_their_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, file) = (
        folder.path().join("policy.yaml"),
        folder.path().join("all.yaml"),
    );
    fs::write(
        &policy,
        "# ours\nlimits:\n  all: { key: everyone, rate: 7/1m }\nstore: redis://redis:6379\n",
    )
    .unwrap();
    for kind in ["istio", "envoy-gateway"] {
        let path = format!("deploy/rendered/{kind}.yaml");
        is_up_to_date(&path, &made(kind), "chart");
        let policy = policy.display();
        let printed = sluicegate(&format!(
            "render --for {kind} --namespace shop --policy {policy}"
        ));
        conforms(&printed).unwrap();
        assert!(
            printed.contains("    # ours\n    limits:\n      all: "),
            "{printed}"
        );
        assert!(
            !printed.contains("NAMESPACE") && printed.contains("namespace: shop\n"),
            "{printed}"
        );
        fs::write(&file, &printed).unwrap();
        let checked = sluicegate(&format!("check-config --envoy {}", file.display()));
        assert!(checked.contains("0 errors, "), "{checked}");
    }
}
