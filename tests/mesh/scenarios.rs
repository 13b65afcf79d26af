//! What is counted, for each mesh alike.

use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually_within;

use crate::images::FILTER_TAGS;
use crate::mesh::{Mesh, wait_for};
use crate::report::Report;
use crate::traffic::{CLOSED, Counts, Key, OPEN, new_key};

const BURST: u64 = 200;
const PODS: usize = 2;

/// Seconds within which a proxy or a sidecar recovers on a busy machine; the report says how long it really took.
const RECOVERS: Duration = Duration::from_secs(120);
/// The kubelet updates the files of a ConfigMap once a minute, and by its own cache's age later.
const FELT: Duration = Duration::from_secs(240);

/// Runs all scenarios.
pub async fn run(mesh: &mut Mesh, report: &mut Report) {
    run_start(mesh, report).await;
    policy_change(mesh, report).await;
    run_rest(mesh, report).await;
}

/// Runs all but the change of a ConfigMap, which waits for the kubelet and does not depend on the mesh.
pub async fn run_without_waiting(mesh: &mut Mesh, report: &mut Report) {
    run_start(mesh, report).await;
    run_rest(mesh, report).await;
}

async fn run_start(mesh: &mut Mesh, report: &mut Report) {
    // Pods are ready before kube-proxy sends them connections.
    eventually_within(RECOVERS, "every pod decides", async || {
        mesh.clients.is_served(CLOSED).await;
        let decisions = decisions(mesh);
        decisions.len() == PODS && decisions.iter().all(|count| *count > 0.0)
    })
    .await;
    exact_over_two_pods(mesh, report).await;
}

async fn run_rest(mesh: &mut Mesh, report: &mut Report) {
    sidecar_killed(mesh, report).await;
    redis_away(mesh, report).await;
    filter_upgraded(mesh, report).await;
    typo_refused(mesh, report).await;
}

/// A burst with a new key admits exactly the quota.
async fn burst_is_exact(mesh: &Mesh) -> Counts {
    let counts = mesh.clients.burst(CLOSED, &new_key(), BURST).await;
    assert_eq!(counts, Counts::exact(BURST, mesh.quota), "a burst of {BURST}");
    counts
}

/// Decisions of each pod's sidecar so far.
fn decisions(mesh: &Mesh) -> Vec<f64> {
    let pods = mesh.pods();
    let sums = pods.iter().map(|pod| pod.sum("sluicegate_decisions_total"));
    sums.map(|sum| sum.unwrap_or_default()).collect()
}

/// Two pods that share a Redis admit exactly the quota, and both decide.
async fn exact_over_two_pods(mesh: &Mesh, report: &mut Report) {
    let (before, started) = (decisions(mesh), Instant::now());
    let counts = burst_is_exact(mesh).await;
    let took = started.elapsed();
    let both = before.iter().zip(decisions(mesh));
    let each: Vec<_> = both.map(|(before, after)| after - before).collect();
    assert!(
        each.len() == PODS && each.iter().all(|decisions| *decisions > 0.0),
        "decisions of each pod: {each:?}"
    );
    let note = format!("decisions of the two sidecars: {} and {}", each[0], each[1]);
    report.row(mesh.name, "exact over two pods", counts, took, &note);
}

/// A changed ConfigMap changes the limit without a restart.
async fn policy_change(mesh: &mut Mesh, report: &mut Report) {
    let (old, changed) = (mesh.quota, mesh.quota + 10);
    let restarts = restarts(mesh);
    let epochs = |mesh: &Mesh| {
        let pods = mesh.pods();
        let epochs = pods.iter().map(|pod| pod.metric("sluicegate_policy_epoch"));
        epochs
            .map(|epoch| epoch.expect("a sidecar's metrics"))
            .collect::<Vec<_>>()
    };
    let before = epochs(mesh);
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    set_quota(mesh, changed);
    eventually_within(FELT, "both sidecars have the new policy", async || {
        epochs(mesh)
            .iter()
            .zip(&before)
            .all(|(now, before)| now > before)
    })
    .await;
    let took = started.elapsed();
    let (mut counts, _) = stream.stop().await;
    assert_eq!(
        counts.ok,
        counts.requests(),
        "requests during the change: {counts:?}"
    );
    counts += burst_is_exact(mesh).await;
    assert_eq!(self::restarts(mesh), restarts, "restarts");
    let note =
        format!("quota {old} -> {changed}, no restart; seconds until both sidecars have it");
    report.row(
        mesh.name,
        "policy changed in its ConfigMap",
        counts,
        took,
        &note,
    );
}

fn set_quota(mesh: &mut Mesh, quota: u64) {
    mesh.upgrade(&format!(
        "policy.limits.per-key.windows=[{{\"quota\": {quota}, \"per\": \"1h\"}}]"
    ))
    .unwrap_or_else(|failure| panic!("{failure}"));
    mesh.quota = quota;
}

fn restarts(mesh: &Mesh) -> u64 {
    mesh.pods().iter().map(|pod| pod.restarts()).sum()
}

/// A killed sidecar is restarted; nobody gets more than the quota meanwhile.
async fn sidecar_killed(mesh: &Mesh, report: &mut Report) {
    let quota = mesh.quota;
    let before = restarts(mesh);
    let key = new_key();
    let open = mesh.clients.stream(OPEN, Key::Own);
    let closed = mesh.clients.stream(CLOSED, Key::Own);
    // Part of the quota is used before, the rest while the sidecar is away and after.
    let mut limited = mesh.clients.burst(CLOSED, &key, quota / 3).await;
    let started = Instant::now();
    mesh.pods()[0].kill_sidecar();
    limited += mesh.clients.burst(CLOSED, &key, quota / 3).await;
    eventually_within(RECOVERS, "the kubelet restarts the sidecar", async || {
        restarts(mesh) > before
    })
    .await;
    eventually_within(RECOVERS, "all pods are ready", async || {
        mesh.pods().iter().all(|pod| pod.ready)
    })
    .await;
    eventually_within(RECOVERS, "every pod decides again", async || {
        mesh.pods()
            .iter()
            .all(|pod| pod.metric("sluicegate_store_up") == Some(1.0))
    })
    .await;
    let took = started.elapsed();
    let ((open, _), (mut counts, gap)) = (open.stop().await, closed.stop().await);
    limited += mesh.clients.burst(CLOSED, &key, BURST).await;
    assert_eq!(
        open.ok,
        open.requests(),
        "`when_unavailable: allow`: {open:?}"
    );
    assert_eq!(
        counts.ok + counts.unavailable,
        counts.requests(),
        "`when_unavailable: deny`: {counts:?}"
    );
    // Units of a verdict that the killed sidecar no longer gave are lost: at most one for each client.
    assert!(
        (quota - 4..=quota).contains(&limited.ok),
        "admitted of {quota}: {limited:?}"
    );
    assert_eq!(limited.other + limited.lost, 0, "{limited:?}");
    let admitted = limited.ok;
    counts += open;
    counts += limited;
    burst_is_exact(mesh).await;
    let note = format!(
        "one key: {admitted} of {quota}; 503 only by `deny`, for {:.1} s; seconds until restarted and ready",
        gap.as_secs_f64()
    );
    report.row(mesh.name, "sidecar's container killed", counts, took, &note);
}

/// Without Redis all pods stay ready, and the sidecars' shares are the quota together.
async fn redis_away(mesh: &Mesh, report: &mut Report) {
    let quota = mesh.quota;
    let restarts_before = restarts(mesh);
    let store =
        |up: f64| move |pod: &crate::pods::Pod| pod.metric("sluicegate_store_up") == Some(up);
    // A sidecar that was killed has its share for some seconds more.
    eventually_within(RECOVERS, "the sidecars count each other", async || {
        let pods = mesh.pods();
        let counted = pods.iter().map(|pod| pod.metric("sluicegate_sidecars"));
        counted.into_iter().all(|count| count == Some(PODS as f64))
    })
    .await;
    let open = mesh.clients.stream(OPEN, Key::Own);
    let closed = mesh.clients.stream(CLOSED, Key::Own);
    scale_redis(mesh, "0");
    eventually_within(RECOVERS, "the sidecars notice", async || {
        mesh.pods().iter().all(store(0.0))
    })
    .await;
    let mut counts = mesh.clients.burst(CLOSED, &new_key(), BURST).await;
    assert_eq!(counts, Counts::exact(BURST, quota), "a burst by shares");
    // Longer than it takes a readiness probe to fail.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let pods = mesh.pods();
    assert!(
        pods.iter().all(|pod| pod.ready),
        "pods without Redis: {pods:?}"
    );
    assert!(pods.iter().all(store(0.0)), "Redis is still away");
    let ((open, _), (closed, gap)) = (open.stop().await, closed.stop().await);
    assert_eq!(
        open.ok,
        open.requests(),
        "`when_unavailable: allow`: {open:?}"
    );
    assert_eq!(
        closed.ok + closed.unavailable,
        closed.requests(),
        "`when_unavailable: deny`: {closed:?}"
    );
    scale_redis(mesh, "1");
    wait_for(&mesh.tools, mesh.namespace, "deployment/redis");
    let started = Instant::now();
    eventually_within(RECOVERS, "the sidecars use Redis again", async || {
        mesh.pods().iter().all(store(1.0))
    })
    .await;
    let took = started.elapsed();
    counts += burst_is_exact(mesh).await;
    counts += open;
    counts += closed;
    assert_eq!(restarts(mesh), restarts_before, "restarts");
    let note = format!(
        "pods ready, no restart; by shares exactly {quota} of {BURST}; 503 only by `deny`, for {:.1} s; seconds from \
         Redis's return to its use",
        gap.as_secs_f64()
    );
    report.row(mesh.name, "Redis away", counts, took, &note);
}

fn scale_redis(mesh: &Mesh, replicas: &str) {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "deployment/redis", "--namespace", mesh.namespace];
    mesh.tools.kubectl(&[&scale[..], &[&replicas]].concat());
}

/// The filter's next version takes over while requests flow, and none is lost.
async fn filter_upgraded(mesh: &mut Mesh, report: &mut Report) {
    let quota = mesh.quota;
    let before = codes(mesh);
    let key = new_key();
    let free = mesh.clients.stream(CLOSED, Key::Own);
    let limited = mesh.clients.stream(CLOSED, key.clone());
    let started = Instant::now();
    mesh.upgrade(&format!("filter.image.tag=\"{}\"", FILTER_TAGS[1]))
        .unwrap_or_else(|failure| panic!("{failure}"));
    eventually_within(RECOVERS, "every proxy has the new filter", async || {
        codes(mesh)
            .iter()
            .zip(&before)
            .all(|(now, before)| !now.is_empty() && now != before)
    })
    .await;
    let took = started.elapsed();
    // The old filter's requests and connections end after the new one has taken over.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let ((mut counts, _), (mut limited, _)) = (free.stop().await, limited.stop().await);
    limited += mesh.clients.burst(CLOSED, &key, BURST).await;
    assert_eq!(
        counts.ok,
        counts.requests(),
        "keys of their own: {counts:?}"
    );
    assert_eq!(limited, Counts::exact(limited.requests(), quota), "one key");
    counts += limited;
    let note = format!(
        "one key: exactly {quota}; nothing lost; seconds until both proxies run the new version"
    );
    report.row(
        mesh.name,
        "filter upgraded by its image's tag",
        counts,
        took,
        &note,
    );
}

/// Which code each proxy's filter has: what Envoy's configuration says about the module.
fn codes(mesh: &Mesh) -> Vec<String> {
    let dumps = mesh.pods().into_iter().map(|pod| {
        let text = pod.get(mesh.admin_port, "/config_dump");
        let dump = serde_json::from_str(&text).expect("Envoy prints JSON");
        let mut codes = Vec::new();
        crate::dump::find("vm_config", &dump, &mut codes);
        codes
            .iter()
            .map(|config| config["code"].to_string())
            .collect::<Vec<_>>()
            .join(" ")
    });
    dumps.collect()
}

/// A typing error in the filter's configuration stops the upgrade, and changes nothing.
async fn typo_refused(mesh: &mut Mesh, report: &mut Report) {
    let before = mesh.filter_object();
    let stream = mesh.clients.stream(CLOSED, Key::Own);
    let started = Instant::now();
    let refusal = mesh.upgrade("filter.config.rules[1].when_unavailble=\"deny\"");
    let took = started.elapsed();
    let said = refusal.expect_err("helm accepts a typing error");
    assert_eq!(mesh.filter_object(), before, "the filter's configuration");
    let (mut counts, _) = stream.stop().await;
    assert_eq!(
        counts.ok,
        counts.requests(),
        "requests meanwhile: {counts:?}"
    );
    counts += burst_is_exact(mesh).await;
    assert!(
        said.contains("when_unavailble"),
        "helm does not name the field:\n{said}"
    );
    report.row(
        mesh.name,
        "typo in the filter's configuration",
        counts,
        took,
        "helm upgrade fails and names the field",
    );
}
