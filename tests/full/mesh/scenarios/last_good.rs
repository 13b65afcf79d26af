//! With a broken policy in its ConfigMap, sidecars keep the last good one, also if their container is restarted.

use std::time::Instant;

use sluicegate_tests::process::eventually_within;

use super::{RECOVERS, all_report, exact_burst, restarts};
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLOSED, Key};

const RELOADED: &str = "sluicegate_policy_last_reload_successful";

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    let (valid, restarts_before) = (mesh.release.clone(), restarts(mesh));
    mesh.must_upgrade("validation.enabled=false");
    mesh.must_upgrade(r#"policy.limits.per-key.algorithm="none""#);
    synced(mesh, 0.0).await;
    let mut counts = exact_burst(mesh).await;
    let closed = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    mesh.pods()[0].kill_sidecar();
    let ready = async || mesh.pods().iter().all(|pod| pod.ready);
    let restarted = async || restarts(mesh) > restarts_before && ready().await;
    eventually_within(RECOVERS, "the sidecar starts again", restarted).await;
    let took = started.elapsed();
    let served = mesh.pods()[0].sum("sluicegate_rules_info", r#"source="last_good""#);
    assert_eq!(served, Some(1.0), "the last good policy is in force");
    counts += closed.stop().await.counts.ok_or_unavailable("`deny`");
    counts += exact_burst(mesh).await;
    mesh.release = valid;
    mesh.must_upgrade("validation.enabled=true");
    synced(mesh, 1.0).await;
    counts += exact_burst(mesh).await;
    let note = "limits stay; a sidecar that is killed starts with the last good policy; seconds until it is ready";
    report.row(mesh, "broken policy, and a restart", counts, took, note);
}

/// Waits until all sidecars have read the ConfigMap: the kubelet updates a pod's files at once when the pod changes.
async fn synced(mesh: &Mesh, value: f64) {
    let (namespace, selector) = mesh.proxies;
    let pods = format!("pods --namespace {namespace} --selector {selector}");
    mesh.tools
        .kubectl(&format!("annotate --overwrite {pods} read={value}"));
    let read = async || all_report(mesh, RELOADED, value);
    eventually_within(RECOVERS, "the sidecars read the policy", read).await;
}
