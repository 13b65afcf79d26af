//! Without Redis all pods stay ready, and the sidecars' shares are the quota together.

use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually_within;

use super::{BURST, PODS, RECOVERS, all_report, decisions, exact_burst, restarts};
use crate::mesh::{Mesh, wait_for};
use crate::report::Report;
use crate::traffic::{CLOSED, Counts, Key, OPEN, new_key};

/// Longer than a readiness probe that fails takes to make a pod unready: three times 5 s in the chart.
const LONG_ENOUGH: Duration = Duration::from_secs(20);

const UP: &str = "sluicegate_store_up";

pub async fn run(mesh: &Mesh, report: &mut Report) {
    // A sidecar that was killed keeps its share for some seconds.
    let counted = async || all_report(mesh, "sluicegate_sidecars", PODS as f64);
    eventually_within(RECOVERS, "the sidecars count each other", counted).await;
    let restarts_before = restarts(mesh);
    let open = mesh.clients.stream(OPEN, Key::Own);
    let closed = mesh.clients.stream(CLOSED, Key::Own);
    scale_redis(mesh, 0);
    // For the first moments a sidecar answers `unavailable`; then it decides by its share.
    let by_shares = async || decisions(mesh, "share").iter().all(|count| *count > 0.0);
    eventually_within(RECOVERS, "both sidecars decide by shares", by_shares).await;
    let mut counts = mesh.clients.burst(CLOSED, &new_key(), BURST).await;
    let exact = Counts::exact(BURST, mesh.quota);
    assert_eq!(counts, exact, "a burst that the shares decide");
    tokio::time::sleep(LONG_ENOUGH).await;
    let pods = mesh.pods();
    assert!(pods.iter().all(|pod| pod.ready), "without Redis: {pods:?}");
    assert!(all_report(mesh, UP, 0.0), "Redis is still away");
    let (open, closed) = (open.stop().await, closed.stop().await);
    open.counts.all_ok("`allow`");
    let refused = closed.counts.ok_or_unavailable("`deny`");

    scale_redis(mesh, 1);
    wait_for(&mesh.tools, mesh.redis, "deployment/redis");
    let started = Instant::now();
    let all_up = async || all_report(mesh, UP, 1.0);
    eventually_within(RECOVERS, "the sidecars use Redis", all_up).await;
    let took = started.elapsed();
    counts += exact_burst(mesh).await;
    assert_eq!(restarts(mesh), restarts_before, "restarts");
    let note = format!(
        "pods ready, no restart; by shares exactly {} of {BURST}; {} x 503 where a rule says `deny`; seconds from \
         Redis's return until both sidecars use it",
        mesh.quota, refused.unavailable
    );
    counts += open.counts;
    counts += refused;
    report.row(mesh, "Redis away", counts, took, &note);
}

fn scale_redis(mesh: &Mesh, replicas: u8) {
    let redis = format!("deployment/redis --namespace {}", mesh.redis);
    let replicas = format!("--replicas={replicas}");
    mesh.tools.kubectl(&format!("scale {redis} {replicas}"));
}
