//! A changed ConfigMap changes the limit without a restart.

use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually_within;

use super::{exact_burst, restarts};
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CLOSED, Key};

/// The kubelet updates the files of a ConfigMap once a minute, or half a minute later.
const FELT_WITHIN: Duration = Duration::from_secs(240);

/// How many units the new quota has more.
const MORE: u64 = 10;

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    let (old, restarts_before, epochs_before) = (mesh.quota, restarts(mesh), epochs(mesh));
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    mesh.quota = old + MORE;
    let windows = format!(r#"[{{"quota": {}, "per": "1h"}}]"#, mesh.quota);
    mesh.must_upgrade(&format!("policy.limits.per-key.windows={windows}"));
    eventually_within(FELT_WITHIN, "both sidecars have the policy", async || {
        let epochs = epochs(mesh);
        epochs.len() == epochs_before.len()
            && epochs
                .iter()
                .zip(&epochs_before)
                .all(|(now, before)| now > before)
    })
    .await;
    let took = started.elapsed();
    let mut counts = stream.stop().await.counts.all_ok("during the change");
    counts += exact_burst(mesh).await;
    assert_eq!(restarts(mesh), restarts_before, "restarts");
    let note = format!(
        "quota {old} -> {}, no restart; seconds from `helm upgrade` until both sidecars have it",
        mesh.quota
    );
    report.row(mesh, "policy changed in its ConfigMap", counts, took, &note);
}

/// The number of the policy in force in each sidecar.
fn epochs(mesh: &Mesh) -> Vec<f64> {
    let pods = mesh.pods();
    let epochs = pods.iter().map(|pod| pod.metric("sluicegate_policy_epoch"));
    epochs.map(Option::unwrap_or_default).collect()
}
