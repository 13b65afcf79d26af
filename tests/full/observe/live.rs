//! One scene of less than a minute: many 429s, a reload, a refused policy, an outage of Redis, an outage of the sidecar.
//! The alerts fire and resolve; then every panel of both dashboards must have data.

use sluicegate_tests::process::eventually;

use super::committed::metrics_of_the_rules;
use super::description::Description;
use super::grafana::files;
use super::panels::{View, described, fault, most_of};
use super::runbook::{every_command_works, every_query_finds_instances};
use super::scene::{BURST, PLENTY, Scene, now, policy};

impl Scene {
    /// Waits until no alert of the coming outages fires.
    async fn all_alerts_resolve(&self) {
        for alert in OUTAGES.split(' ') {
            let fires = async || self.is_firing(alert).await;
            eventually(&format!("{alert} resolves"), async || !fires().await).await;
        }
    }

    async fn fires(&self, alert: &str) {
        let fires = async || self.is_firing(alert).await;
        eventually(&format!("{alert} fires"), fires).await;
    }

    async fn is_firing(&self, alert: &str) -> bool {
        let name = format!("Sluicegate{alert}");
        self.prometheus.firing().await.contains(&name)
    }
}

/// Alerts: each after `Sluicegate`.
const OUTAGES: &str =
    "Unmetered RefusedWithoutVerdict SidecarMissing StoreFailing PolicyRefused ManyDenials";

/// Plays the scene; returns when it began and ended.
async fn play(scene: &mut Scene) -> (f64, f64) {
    let from = now();
    let store = scene.redis.url();
    scene.fires("ManyDenials").await;
    scene.write_policy(&policy(&store, PLENTY * 2));
    scene.sidecar.reaches("sluicegate_policy_epoch", 2.0).await;
    scene.write_policy("limits: {");
    scene.fires("PolicyRefused").await;
    scene.write_policy(&policy(&store, PLENTY));
    scene.set_noisy(false);
    scene.all_alerts_resolve().await;

    scene.redis.kill();
    scene.fires("StoreFailing").await;
    scene.fires("RefusedWithoutVerdict").await;
    scene.redis.restart().await;
    scene.all_alerts_resolve().await;

    scene.sidecar.kill();
    scene.fires("Unmetered").await;
    scene.fires("SidecarMissing").await;
    scene.sidecar.restart().await;
    scene.all_alerts_resolve().await;
    // Panels of current values need traffic.
    scene.set_noisy(true);
    scene.fires("ManyDenials").await;
    // The restarted sidecar numbers its policies from 1 again, which the filter must accept.
    let here = r#"sluicegate_decisions_total{limit="per-key",source="filter",verdict="denied"}"#;
    let denies = async || scene.sidecar.metric(here).await > 0.0;
    eventually("the filter denies by itself again", denies).await;
    // Within 15 s. The runbook looks for it.
    let metrics = async || scene.sidecar.metrics().await;
    let announced = async || metrics().await.contains("\nsluicegate_filter_info{");
    eventually("the filter announces itself again", announced).await;
    (from, now())
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_and_resolve_and_every_panel_has_data() {
    let mut scene = Scene::start().await;
    let (from, to) = play(&mut scene).await;
    let description = Description::read();
    let mut faults = Vec::new();
    let mut used = Vec::new();
    for ((path, page), dashboard) in files(&description).iter().zip(&description.dashboards) {
        let view = View::all(&scene.prometheus, page, from, to);
        let shown = view.of(page).await;
        let each = View::all(&scene.prometheus, page, from, to);
        let each = each.each(page).await;
        // On this machine `namespace` has no values; sidecar, limit and Envoy do.
        assert_eq!(each.choices(), 3);
        let again = each.of(page).await;
        let panels = described(&description, &dashboard.name);
        assert_eq!((panels.len(), again.len()), (shown.len(), shown.len()));
        for (what, shown) in [("All", shown), ("each", again)] {
            for (shown, panel) in shown.iter().zip(&panels) {
                if let Some(fault) = fault(shown, panel) {
                    faults.push(format!("{path}: {}, {what} chosen: {fault}", panel.title));
                }
                if panel.title == "Use against the quota" {
                    used.push(most_of(shown, "bucket"));
                }
            }
        }
        for annotation in page["annotations"]["list"].as_array().unwrap() {
            let query = annotation["expr"].as_str().unwrap();
            let marks = view.ask(query, false).await;
            assert!(!marks.is_empty(), "{path}: no annotation from {query}");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Units of the burst, not of the quota per minute.
    let burst = f64::from(BURST);
    let within = |used: &f64| (burst / 2.0..=burst).contains(used);
    assert!(used.len() == 2 && used.iter().all(within), "{used:?}");
    every_metric_of_the_rules_is_there(&scene).await;
    every_command_works(&scene);
    every_query_finds_instances(&scene).await;
}

/// A rule over a metric that does not exist never fires.
async fn every_metric_of_the_rules_is_there(scene: &Scene) {
    let there = scene.prometheus.names().await;
    for name in metrics_of_the_rules() {
        assert!(there.contains(&name), "no metric {name}");
    }
}
