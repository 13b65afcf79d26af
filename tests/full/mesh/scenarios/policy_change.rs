//! A changed ConfigMap changes a rule and its limit in every filter, without a restart and without an update of Envoy.

use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually_within;

use super::{BURST, PODS, digests, exact_burst, restarts};
use crate::mesh::Mesh;
use crate::report::Report;
use crate::traffic::{CHANGED, CLOSED, Counts, Key, new_key};

/// The kubelet updates the files of a ConfigMap once a minute, or half a minute later.
const FELT_WITHIN: Duration = Duration::from_secs(240);

/// How many units the new quota has more.
const MORE: u64 = 10;

/// What Envoy counts when a listener, a discovered filter or a VM is replaced.
const UPDATES: &str =
    "/stats?filter=listener_(added|modified|create_success)|config_reload$|v8.created";

pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    let burst = async |mesh: &Mesh| mesh.clients.burst(CHANGED, &new_key(), BURST).await;
    let mut counts = burst(mesh).await.all_ok("before a rule applies");
    let (old, restarts_before, updates_before) = (mesh.quota, restarts(mesh), updates(mesh));
    let (before, [filter, _]) = (digests(mesh), mesh.objects());
    // A worker and the main thread at least.
    let filters = before.len();
    assert!(filters >= 2 * PODS, "filters: {before:?}");
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    mesh.quota = old + MORE;
    let windows = format!(r#"[{{"quota": {}, "per": "1h"}}]"#, mesh.quota);
    let rule = r#"policy.rules.default.rules[1].match={"path_regex": "/(closed|changed)"}"#;
    mesh.must_upgrade(&format!("policy.limits.per-key.windows={windows},{rule}"));
    eventually_within(FELT_WITHIN, "every filter has the rules", async || {
        let now = digests(mesh);
        now.len() == filters && now.iter().all(|one| *one == now[0] && *one != before[0])
    })
    .await;
    let took = started.elapsed();
    counts += stream.stop().await.counts.all_ok("during the change");
    let changed = burst(mesh).await;
    assert_eq!(changed, Counts::exact(BURST, mesh.quota), "{CHANGED}");
    counts += changed;
    counts += exact_burst(mesh).await;
    assert_eq!(restarts(mesh), restarts_before, "restarts");
    assert_eq!(updates(mesh), updates_before, "updates of Envoy");
    assert_eq!(mesh.objects()[0], filter, "the filter's configuration");
    let note = format!(
        "quota {old} -> {}, and a rule applies to another path; no restart, no listener or filter replaced; seconds from \
         `helm upgrade` until all {filters} filters have it",
        mesh.quota
    );
    report.row(mesh, "rule and quota in the ConfigMap", counts, took, &note);
}

/// Updates of each proxy so far.
fn updates(mesh: &Mesh) -> Vec<String> {
    let pods = mesh.pods().into_iter();
    let updates: Vec<_> = pods.map(|pod| pod.get(mesh.admin_port, UPDATES)).collect();
    let counts = |text: &String| text.contains("listener_added") && text.contains("v8.created");
    assert!(updates.iter().all(counts), "{updates:?}");
    updates
}
