//! Two pods that share a Redis admit exactly the quota, and both decide.

use std::time::Instant;

use sluicegate_tests::process::eventually_within;

use super::{PODS, RECOVERS, decisions, exact_burst};
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::CLOSED;

pub async fn run(mesh: &Mesh, report: &mut Report) {
    // Pods are ready before kube-proxy sends them connections.
    eventually_within(RECOVERS, "every pod decides", async || {
        mesh.clients.is_served(CLOSED).await;
        let decisions = decisions(mesh, "");
        decisions.len() == PODS && decisions.iter().all(|count| *count > 0.0)
    })
    .await;
    let (before, started) = (decisions(mesh, ""), Instant::now());
    let counts = exact_burst(mesh).await;
    let took = started.elapsed();
    let both = before.iter().zip(decisions(mesh, ""));
    let each: Vec<_> = both.map(|(before, after)| after - before).collect();
    assert!(
        each.len() == PODS && each.iter().all(|decisions| *decisions > 0.0),
        "decisions of each pod: {each:?}"
    );
    let note = format!(
        "decisions of the two sidecars: {} and {}; the other denials were cached",
        each[0], each[1]
    );
    report.row(mesh, "exact over two pods", counts, took, &note);
}
