//! Mistakes in the filter's configuration stop the upgrade, and change nothing.

use std::time::Instant;

use super::exact_burst;
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLOSED, Key};

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    // The chart's schema knows every field.
    let typo = r#"filter.config.rules[1].when_unavailble="deny""#;
    refused(mesh, report, "typo in a field", typo, "when_unavailble").await;
    // Only the hook reads filter and policy together.
    let name = r#"filter.config.rules[1].checks[0].limit="per-kye""#;
    refused(mesh, report, "unknown limit", name, "per-kye").await;
}

async fn refused(
    mesh: &mut Mesh,
    report: &mut Report,
    scenario: &'static str,
    setting: &str,
    culprit: &str,
) {
    let before = mesh.filter_object();
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    let refusal = mesh.upgrade(setting);
    let took = started.elapsed();
    let said = refusal.expect_err("helm accepts a mistake");
    assert!(
        said.contains(culprit),
        "helm does not name `{culprit}`:\n{said}"
    );
    assert_eq!(mesh.filter_object(), before, "the filter's configuration");
    let mut counts = stream.stop().await.counts.all_ok("meanwhile");
    counts += exact_burst(mesh).await;
    let note = format!("`helm upgrade` fails and names `{culprit}`; seconds until it does");
    report.row(mesh, scenario, counts, took, &note);
}
