//! Alerts and what scrapes for them: changed by name, for other teams and other Prometheuses.

use serde_json::{Value, json};
use sluicegate_tests_full::chart;

use super::scenes::rendered;

/// The alerts that the chart makes of a file of values, by name.
fn alerts(file: &str) -> Vec<(String, Value)> {
    let manifests = rendered(file);
    let rules = chart::manifest(&manifests, "PrometheusRule", "sluicegate");
    let groups = rules["spec"]["groups"].as_array().unwrap().iter();
    let all = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let named = all.filter_map(|rule| Some((rule["alert"].as_str()?.to_owned(), rule.clone())));
    named.collect()
}

fn named<'a>(alerts: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    let mut named = alerts.iter().filter(|(alert, _)| alert == name);
    named.next().map(|(_, alert)| alert)
}

#[test]
fn alerts_are_changed_by_name_and_others_keep_what_they_are() {
    let (changed, plain) = (
        alerts("kubernetes-more.yaml"),
        alerts("kubernetes-deployment.yaml"),
    );
    assert_eq!(changed.len() + 1, plain.len());
    for (name, before) in &plain {
        let mut expected = before.clone();
        expected["labels"]["team"] = json!("edge");
        match name.as_str() {
            "SluicegateStoreSlow" => expected = Value::Null,
            "SluicegateManyDenials" => {
                let expression = before["expr"].as_str().unwrap();
                assert!(expression.contains("> 0.25"), "{expression}");
                expected["expr"] = json!(expression.replace("> 0.25", "> 0.4"));
                expected["for"] = json!("15m");
                expected["labels"]["severity"] = json!("critical");
            }
            _ => {}
        }
        let after = named(&changed, name).unwrap_or(&Value::Null);
        assert_eq!(*after, expected, "{name}");
    }
}

#[test]
fn monitors_have_the_relabelings_and_dashboards_the_annotations() {
    let manifests = rendered("kubernetes-more.yaml");
    let own = json!({ "targetLabel": "cluster", "replacement": "east" });
    for name in ["sluicegate", "sluicegate-envoy"] {
        let monitor = &chart::manifest(&manifests, "PodMonitor", name)["spec"];
        let relabelings = monitor["podMetricsEndpoints"][0]["relabelings"].as_array();
        let last = relabelings.and_then(|all| all.last());
        assert_eq!(last, Some(&own), "{name}");
    }
    let dashboards = chart::manifest(&manifests, "ConfigMap", "sluicegate-dashboards");
    assert_eq!(
        dashboards["metadata"]["annotations"]["grafana_folder"],
        "Edge"
    );
}
