//! Every rendering passes Helm's lint and fits the schemas of Kubernetes and of the custom resources.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use sluicegate_tests::process::{attempt, repository, run};
use sluicegate_tests_full::chart::{self, INSTALL};
use sluicegate_tests_full::documents::text;

use super::scenes::{self, NAMESPACE};

/// What kubeconform says of a text of manifests; `Err` if one does not fit its schema or has none.
pub fn conforms(text: &str) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("manifests.yaml");
    std::fs::write(&file, text).unwrap();
    let schemas = repository(".tools/schemas").canonicalize().expect(INSTALL);
    let mut command = Command::new(repository(".tools/kubeconform"));
    command.args(["-strict", "-summary", "-verbose"]);
    for name in [
        "{{.ResourceKind}}{{.KindSuffix}}.json",
        "{{.Group}}_{{.ResourceKind}}_{{.ResourceAPIVersion}}.json",
    ] {
        command.arg("-schema-location").arg(schemas.join(name));
    }
    attempt(command.arg(file), INSTALL)
}

fn template(chart: &Path, values: &Path) -> String {
    chart::template(chart, NAMESPACE, &[values], &[])
        .unwrap_or_else(|error| panic!("{}: {error}", values.display()))
}

#[test]
fn every_rendering_fits_the_schemas() {
    let chart = repository("deploy/helm/sluicegate");
    for file in scenes::files() {
        let text = template(&chart, &file);
        let said = conforms(&text).unwrap_or_else(|said| panic!("{}: {said}", file.display()));
        let kinds = text.lines().filter(|line| line.starts_with("kind:"));
        let all = format!("{} resources found", kinds.count());
        assert!(said.contains(&all), "{all}: {said}");
        assert!(said.contains("Skipped: 0"), "{said}");
    }
}

/// A file of values, what the chart renders from it, and what no schema allows instead.
const MISTAKES: &str = "
kubernetes-deployment.yaml | replicas: 2 | replica: 2
kubernetes-deployment.yaml | readOnlyRootFilesystem | readonlyRootFilesystem
kubernetes-deployment.yaml | podMetricsEndpoints | podMetricsEndpoint
istio.yaml | failStrategy | failstrategy
istio.yaml | resolution: STATIC | resolution: SOMEHOW
envoy-gateway.yaml | jsonPatches | jsonPatch
envoy-gateway.yaml | earlyRequestHeaders | requestHeadersEarly
envoy-gateway.yaml | parametersRef | parameterRef
";

#[test]
fn an_unknown_field_of_each_kind_of_resource_is_found() {
    for mistake in MISTAKES.trim().lines() {
        let [file, from, to] = mistake.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{mistake}");
        };
        let values = repository("tests/full/manifests/values").join(file);
        let text = template(&repository("deploy/helm/sluicegate"), &values);
        assert!(text.contains(from), "{from}");
        let fits = conforms(&text.replace(from, to));
        assert!(fits.is_err(), "{mistake}: it fits the schemas");
    }
}

#[test]
fn helm_finds_nothing_to_complain_about() {
    for file in scenes::files() {
        let mut helm = chart::helm();
        helm.args(["lint", "--strict", "--kube-version", "1.36.0", "--values"]);
        helm.arg(&file).arg(repository("deploy/helm/sluicegate"));
        let said = run(&mut helm, INSTALL);
        assert!(said.contains("0 chart(s) failed"), "{said}");
    }
}

/// The chart links to the alerts and dashboards of deploy/; a package has to contain them.
#[test]
fn a_package_renders_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut helm = chart::helm();
    helm.args(["package", "--destination"]).arg(folder.path());
    run(helm.arg(repository("deploy/helm/sluicegate")), INSTALL);
    let mut packages = std::fs::read_dir(folder.path()).unwrap();
    let package = packages.next().unwrap().unwrap().path();
    for file in scenes::files() {
        let here = template(&repository("deploy/helm/sluicegate"), &file);
        assert!(template(&package, &file) == here, "{}", file.display());
    }
}

#[test]
fn alerts_and_dashboards_are_those_of_deploy() {
    let manifests = scenes::rendered("kubernetes-deployment.yaml");
    let rules = &chart::manifest(&manifests, "PrometheusRule", "sluicegate")["spec"];
    let mut groups = Vec::new();
    for file in ["recording.yml", "alerts.yml"] {
        let text = text(format!("deploy/prometheus/{file}"));
        let base = "runbook_url: https://github.com/sluicegate/sluicegate/blob/v0.1.0/docs/";
        let text = text.replace("runbook_url: docs/", base);
        let text = text.replace("job=\"", &format!("namespace=\"{NAMESPACE}\", job=\""));
        let rules: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        groups.extend(rules["groups"].as_array().unwrap().clone());
    }
    assert_eq!(rules["groups"], json!(groups));
    let dashboards = &chart::manifest(&manifests, "ConfigMap", "sluicegate-dashboards")["data"];
    for name in ["health", "overview"] {
        let text = text(format!("deploy/grafana/dashboards/{name}.json"));
        let here = &dashboards[format!("sluicegate-{name}.json")];
        assert_eq!(here.as_str().unwrap().trim_end(), text.trim_end());
    }
}
