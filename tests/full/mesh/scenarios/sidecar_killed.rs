//! A killed sidecar is restarted; meanwhile each rule gives its own answer, and nobody gets more than the quota.

use std::time::Instant;

use sluicegate_tests::process::eventually_within;

use super::{BURST, RECOVERS, all_report, exact_burst, restarts};
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLIENTS, CLOSED, Key, OPEN, new_key};

pub async fn run(mesh: &Mesh, report: &mut Report) {
    let (quota, restarts_before, key) = (mesh.quota, restarts(mesh), new_key());
    let open = mesh.clients.stream(OPEN, Key::Own);
    let closed = mesh.clients.stream(CLOSED, Key::Own);
    // A third of the quota is used before, a third at once after, the rest when the sidecar is back.
    let mut limited = mesh.clients.burst(CLOSED, &key, quota / 3).await;
    let started = Instant::now();
    mesh.pods()[0].kill_sidecar();
    limited += mesh.clients.burst(CLOSED, &key, quota / 3).await;
    let ready = async || mesh.pods().iter().all(|pod| pod.ready);
    let restarted = async || restarts(mesh) > restarts_before && ready().await;
    eventually_within(RECOVERS, "the kubelet restarts the sidecar", restarted).await;
    let up = async || all_report(mesh, "sluicegate_store_up", 1.0);
    eventually_within(RECOVERS, "both sidecars use Redis", up).await;
    let took = started.elapsed();
    let (open, closed) = (open.stop().await, closed.stop().await);
    limited += mesh.clients.burst(CLOSED, &key, BURST).await;

    let mut counts = open.counts.all_ok("`allow`");
    let refused = closed.counts.ok_or_unavailable("`deny`");
    // Units of verdicts that the killed sidecar did not give any more are lost: at most one for each client.
    assert!(
        (quota - CLIENTS..=quota).contains(&limited.ok) && limited.other + limited.lost == 0,
        "quota {quota}: {limited:?}"
    );
    let note = format!(
        "one key: {} of {quota}; 503 only where a rule says `deny`, for {:.1} s; seconds until restarted and ready",
        limited.ok,
        closed.gap.as_secs_f64()
    );
    counts += refused;
    counts += limited;
    counts += exact_burst(mesh).await;
    report.row(mesh, "sidecar's container killed", counts, took, &note);
}
