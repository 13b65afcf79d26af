//! Mistakes in the policy and in the filter's configuration stop the upgrade, and change nothing.

use std::time::Instant;

use super::exact_burst;
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLOSED, Key};

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    // The chart's schema knows every field of the filter.
    let typo = r#"filter.config.until_rules.hald="1s""#;
    refused(mesh, report, "typo in the filter's part", typo, "hald").await;
    // Only the hook reads the policy, and filter and policy together.
    let name = r#"policy.rules.default.rules[1].checks[0].limit="per-kye""#;
    refused(mesh, report, "unknown limit", name, "per-kye").await;
    let set = r#"filter.config.rule_sets.default="defualt""#;
    refused(mesh, report, "unknown set of rules", set, "defualt").await;
}

async fn refused(
    mesh: &mut Mesh,
    report: &mut Report,
    scenario: &'static str,
    setting: &str,
    culprit: &str,
) {
    let before = mesh.objects();
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    let refusal = mesh.upgrade(setting);
    let took = started.elapsed();
    let said = refusal.expect_err("helm accepts a mistake");
    assert!(
        said.contains(culprit),
        "helm does not name `{culprit}`:\n{said}"
    );
    assert_eq!(mesh.objects(), before, "filter and policy");
    let mut counts = stream.stop().await.counts.all_ok("meanwhile");
    counts += exact_burst(mesh).await;
    let note = format!("`helm upgrade` fails and names `{culprit}`; seconds until it does");
    report.row(mesh, scenario, counts, took, &note);
}
