//! promtool's checks of the rules, and what every alert must have.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::{repository, run};
use sluicegate_tests_full::documents::{blocks, section, text, yaml};

use super::description::Description;
use super::grafana::files;

const FILES: [&str; 2] = ["recording.yml", "alerts.yml"];

fn promtool(arguments: &[&str]) {
    let mut command = Command::new("promtool");
    command.current_dir(repository("deploy/prometheus"));
    run(command.args(arguments), "install it: tests/setup");
}

fn read(file: &str) -> Value {
    yaml(&format!("deploy/prometheus/{file}"))
}

/// Every rule of a file.
fn rules(file: &str) -> Vec<Value> {
    let groups = read(file)["groups"].take();
    let groups = groups.as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
    rules.collect()
}

/// Every case of the alerts' tests.
fn cases() -> Vec<Value> {
    let tests = read("alerts_test.yml");
    let tests = tests["tests"].as_array().unwrap().iter();
    let cases = tests.filter_map(|test| test["alert_rule_test"].as_array());
    cases.flatten().cloned().collect()
}

fn alerts() -> Vec<Value> {
    let alerts = rules("alerts.yml");
    assert!(alerts.iter().all(|rule| rule["alert"].is_string()));
    alerts
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    promtool(&["check", "config", "prometheus.yml"]);
    let lint = ["check", "rules", "--lint=all", "--lint-fatal"];
    promtool(&[&lint[..], &FILES].concat());
}

#[test]
fn alerts_fire_when_they_should_and_only_then() {
    promtool(&["test", "rules", "alerts_test.yml"]);
}

#[test]
fn every_alert_has_a_test_case_that_fires_and_one_that_does_not() {
    let cases = cases();
    for alert in alerts() {
        let name = &alert["alert"];
        let fires = |case: &Value| case["exp_alerts"].is_array();
        let of_it = || cases.iter().filter(|case| case["alertname"] == *name);
        assert!(of_it().any(fires), "{name} never fires");
        assert!(!of_it().all(fires), "{name} is never silent");
    }
}

#[test]
fn every_alert_has_a_section_in_the_runbook() {
    let runbook = text("docs/runbook.md");
    let list = section(&runbook, "The alerts");
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let severity = alert["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("critical" | "warning")), "{name}");
        for text in ["summary", "description"] {
            assert!(alert["annotations"][text].is_string(), "{name}: {text}");
        }
        let link = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], link);
        // Those that page are in bold.
        let entry = format!("[{name}](#{})", name.to_lowercase());
        let is_bold = list.contains(&format!("**{entry}**"));
        assert!(list.contains(&entry), "docs/runbook.md: no {entry}");
        assert_eq!(is_bold, severity == Some("critical"), "{name}");
        let section = section(&runbook, name);
        for part in ["**What it means.**", "**Check.**", "**Do.**"] {
            assert!(section.contains(part), "docs/runbook.md: {name}: {part}");
        }
    }
    let sections = runbook.matches("\n## Sluicegate").count();
    assert_eq!(sections, alerts().len(), "sections of alerts that are gone");
}

/// The runbook's commands ask one sidecar and one Envoy: an alert about a rule, a limit or a configuration names neither.
#[test]
fn an_alert_without_an_instance_has_a_query_that_leads_to_instances() {
    let (runbook, cases) = (text("docs/runbook.md"), cases());
    let mut without = BTreeSet::new();
    for case in &cases {
        for alert in case["exp_alerts"].as_array().into_iter().flatten() {
            let labels = alert["exp_labels"].as_object().unwrap();
            // If there is no target at all, no query finds one.
            let is_about = |label: &&str| labels.contains_key(*label);
            let is_about_many = ["rule", "limit", "configuration"].iter().any(is_about);
            if is_about_many && !labels.contains_key("instance") {
                without.insert(case["alertname"].as_str().unwrap());
            }
        }
    }
    assert!(without.len() >= 6, "{without:?}");
    for name in without {
        let queries = blocks(section(&runbook, name), "promql").concat();
        let leads = queries.contains("by (namespace, instance");
        assert!(leads, "docs/runbook.md: {name}: no query for instances");
    }
}

#[test]
fn every_recording_rule_is_used() {
    let alerts = alerts();
    let recorded = rules("recording.yml");
    let dashboards = files(&Description::read());
    for rule in &recorded {
        let name = rule["record"].as_str().unwrap();
        let mut users = alerts.iter().chain(&recorded).map(|user| &user["expr"]);
        let used = users.any(|expr| expr.as_str().unwrap().contains(name));
        let mut pages = dashboards.iter().map(|(_, page)| page.to_string());
        let shown = pages.any(|page| page.contains(name));
        assert!(used || shown, "{name} is unused");
    }
}
