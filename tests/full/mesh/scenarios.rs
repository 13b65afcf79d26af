//! What is counted, for own Envoys and each mesh alike: one scenario in each file of scenarios/.

mod by_route;
mod exact;
mod filter_upgraded;
mod last_good;
mod misconfigured;
mod mistakes;
mod policy_change;
mod redis_away;
mod runbook;
mod sidecar_killed;

use std::time::Duration;

use serde_json::Value;

use crate::mesh::Mesh;
use crate::pods::Pod;
use crate::report::Report;
use crate::traffic::{CLOSED, Counts, new_key};

/// Requests of a burst: more than any quota here.
const BURST: u64 = 200;

/// Proxies of each mesh.
const PODS: usize = 2;

/// Within which a proxy or a sidecar recovers on a busy machine; the report says how long it really took.
const RECOVERS: Duration = Duration::from_secs(180);

/// Runs all scenarios.
pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    exact::run(mesh, report).await;
    runbook::run(mesh, report);
    policy_change::run(mesh, report).await;
    failures_and_upgrades(mesh, report).await;
}

/// Those of [`run`] and rules by route, in a proxy that has routes.
pub async fn run_with_routes(mesh: &mut Mesh, report: &mut Report) {
    by_route::run(mesh, report).await;
    run(mesh, report).await;
}

/// Runs all but the change of a ConfigMap, which waits for the kubelet and does not depend on the mesh.
pub async fn run_without_waiting(mesh: &mut Mesh, report: &mut Report) {
    by_route::run(mesh, report).await;
    exact::run(mesh, report).await;
    runbook::run(mesh, report);
    failures_and_upgrades(mesh, report).await;
}

/// Likewise, without the filter's upgrade: a filter that comes from a ConfigMap is replaced with the pods.
pub async fn run_without_mesh(mesh: &mut Mesh, report: &mut Report) {
    exact::run(mesh, report).await;
    runbook::run(mesh, report);
    failures(mesh, report).await;
    mistakes::run(mesh, report).await;
    last_good::run(mesh, report).await;
}

async fn failures_and_upgrades(mesh: &mut Mesh, report: &mut Report) {
    failures(mesh, report).await;
    filter_upgraded::run(mesh, report).await;
    mistakes::run(mesh, report).await;
    misconfigured::run(mesh, report).await;
}

async fn failures(mesh: &Mesh, report: &mut Report) {
    sidecar_killed::run(mesh, report).await;
    redis_away::run(mesh, report).await;
}

/// Sends a burst with a new key.
///
/// # Panics
/// Not exactly the quota is admitted.
async fn exact_burst(mesh: &Mesh) -> Counts {
    let counts = mesh.clients.burst(CLOSED, &new_key(), BURST).await;
    let exact = Counts::exact(BURST, mesh.quota);
    assert_eq!(counts, exact, "a burst of {BURST} with one key");
    counts
}

/// Checks that requests pass without a limit.
///
/// # Panics
/// One does not get 200.
pub async fn not_limited(mesh: &Mesh) {
    let counts = mesh.clients.burst(CLOSED, &new_key(), BURST).await;
    assert_eq!(counts.ok, BURST, "without the chart: {counts:?}");
}

/// Decisions of each pod's sidecar so far, of this source or, if it is empty, of all.
fn decisions(mesh: &Mesh, source: &str) -> Vec<f64> {
    let pods = mesh.pods();
    let label = format!("source=\"{source}");
    let sums = pods
        .iter()
        .map(|pod| pod.sum("sluicegate_decisions_total", &label));
    sums.map(Option::unwrap_or_default).collect()
}

/// The digests of rules in force in each filter; empty if a sidecar does not answer or a filter has other rules.
fn digests(mesh: &Mesh) -> Vec<String> {
    let lists = mesh.pods().into_iter().map(|pod| {
        let list: Value = serde_json::from_str(&pod.try_get(9181, "/v1/filters").ok()?).ok()?;
        let filters = list["filters"].as_array()?.iter();
        // One that has ended with its listener is listed for a minute.
        let filters = filters.filter(|filter| filter["seen_seconds"].as_u64() < Some(10));
        let digests = filters.map(|filter| {
            let in_force = filter["state"] == "in_force";
            in_force.then(|| filter["digest"].as_str().map(str::to_owned))?
        });
        digests.collect::<Option<Vec<_>>>()
    });
    let lists: Option<Vec<_>> = lists.collect();
    lists.unwrap_or_default().concat()
}

/// Restarts of all containers so far.
fn restarts(mesh: &Mesh) -> u64 {
    mesh.pods().iter().map(Pod::restarts).sum()
}

/// Whether this metric of every pod's sidecar has this value.
fn all_report(mesh: &Mesh, metric: &str, value: f64) -> bool {
    let pods = mesh.pods();
    pods.len() == PODS && pods.iter().all(|pod| pod.metric(metric) == Some(value))
}
