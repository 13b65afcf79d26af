//! What clients get when nothing stops a mistake: the statuses in the tables of docs/install.

use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually_within;
use sluicegate_tests_full::documents::install_page;

use super::{PODS, RECOVERS, exact_burst};
use crate::images::FILTER_TAGS;
use crate::mesh::{Mesh, delete_pods};
use crate::report::Report;
use crate::traffic::{CLOSED, Counts, Key};

/// Requests that must all get the status.
const SAMPLE: usize = 50;

/// How long a running proxy is watched after it was sent a mistake.
const WATCHED: Duration = Duration::from_secs(10);

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    not_fetched(mesh, report).await;
    not_validated(mesh, report).await;
}

async fn not_fetched(mesh: &mut Mesh, report: &mut Report) {
    let status = status_on_page(mesh, "the filter cannot be fetched");
    mesh.must_upgrade(r#"filter.image.tag="missing""#);
    let started = Instant::now();
    all_get(mesh, status).await;
    mesh.must_upgrade(&format!(r#"filter.image.tag="{}""#, FILTER_TAGS[1]));
    let counts = recovered(mesh).await;
    let note = format!("{status} for every request, until the image is there; seconds in all");
    let (scenario, took) = ("filter that cannot be fetched", started.elapsed());
    report.row(mesh, scenario, counts, took, &note);
}

async fn not_validated(mesh: &mut Mesh, report: &mut Report) {
    let status = status_on_page(mesh, "a mistake in the filter's configuration");
    let valid = mesh.release.clone();
    mesh.must_upgrade("validation.enabled=false");
    // Longer than the bound: the chart's schema cannot see that, the filter refuses it.
    mesh.must_upgrade(r#"filter.config.until_rules.hold="1h""#);
    let started = Instant::now();
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    tokio::time::sleep(WATCHED).await;
    let counts = stream.stop().await.counts;
    let mut counts = counts.all_ok("a running proxy keeps its configuration");
    let (namespace, selector) = mesh.proxies;
    delete_pods(&mesh.tools, namespace, selector);
    eventually_within(RECOVERS, "the new pods are ready", async || {
        let pods = mesh.pods();
        pods.len() == PODS && pods.iter().all(|pod| pod.ready)
    })
    .await;
    all_get(mesh, status).await;
    mesh.release = valid;
    mesh.must_upgrade("validation.enabled=true");
    counts += recovered(mesh).await;
    let note = format!(
        "running proxies keep the old configuration; new pods are ready and answer {status}, until it is corrected; \
         seconds in all"
    );
    let (scenario, took) = ("mistake without validation", started.elapsed());
    report.row(mesh, scenario, counts, took, &note);
}

/// The status that the mesh's page of docs/install says for this fault.
fn status_on_page(mesh: &Mesh, fault: &str) -> u16 {
    let page = install_page(mesh.page);
    let mut rows = page.lines();
    let row = rows.find(|line| line.starts_with(&format!("| {fault}")));
    let found = row.and_then(|row| row.split_once(" for every request"));
    let (before, _) = found.unwrap_or_else(|| panic!("{:?}: no status for: {fault}", mesh.page));
    let status = before.rsplit(' ').next().and_then(|word| word.parse().ok());
    status.expect("a number before `for every request`")
}

/// Waits until every request gets this status.
async fn all_get(mesh: &Mesh, status: u16) {
    let what = format!("{SAMPLE} requests in a row get {status}");
    eventually_within(RECOVERS, &what, async || {
        for _ in 0..SAMPLE {
            if mesh.clients.status(CLOSED).await != Some(status) {
                return false;
            }
        }
        true
    })
    .await;
}

/// Waits until every request is served again, and counts a burst.
async fn recovered(mesh: &Mesh) -> Counts {
    all_get(mesh, 200).await;
    exact_burst(mesh).await
}
