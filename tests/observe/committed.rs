//! What is committed is what is made from the description, and says what it must.
//! `SLUICEGATE_WRITE=1 cargo test -p sluicegate-tests --test observe committed` writes the dashboards anew.

use std::collections::BTreeSet;

use serde_json::Value;
use sluicegate_tests::process::repository;

use crate::description::Description;
use crate::grafana::files;

/// Every name of a metric in a query or a file of rules.
pub fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = words.filter(|word| {
        word.starts_with("sluicegate_")
            || word.starts_with("process_")
            || word.starts_with("envoy_wasm")
    });
    ours.map(str::to_owned).collect()
}

/// Every panel of a dashboard that shows something.
pub fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    let all = dashboard["panels"].as_array().unwrap().iter();
    all.filter(|panel| panel["type"] != "row")
}

/// Every query of a dashboard.
fn queries(dashboard: &Value) -> impl Iterator<Item = &str> {
    panels(dashboard)
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
}

#[test]
fn the_dashboards_in_the_repository_are_those_of_the_description() {
    for (path, made) in files(&Description::read()) {
        let text = serde_json::to_string_pretty(&made).unwrap() + "\n";
        let file = repository(&path);
        if std::env::var_os("SLUICEGATE_WRITE").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let is = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            is == text,
            "{path} is not what deploy/grafana/dashboards.yaml says: `make dashboards` writes it anew"
        );
    }
}

#[test]
fn every_panel_says_what_it_shows_and_no_two_of_a_page_have_the_same_title_or_place() {
    for (path, page) in files(&Description::read()) {
        let mut taken = BTreeSet::new();
        for panel in page["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{path}: {title}");
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(taken.insert((x, y)), "{path}: {title} lies on another");
                }
            }
        }
        let mut titles = BTreeSet::new();
        for panel in panels(&page) {
            let title = panel["title"].as_str().unwrap();
            assert!(
                titles.insert(title),
                "{path}: two panels are called {title}"
            );
            let says = panel["description"].as_str().unwrap();
            assert!(says.ends_with('.'), "{path}: {}", panel["title"]);
        }
    }
}

#[test]
fn every_query_keeps_to_what_is_chosen_at_the_top() {
    for (path, page) in files(&Description::read()) {
        for query in queries(&page) {
            let chosen = query.contains("=~\"$namespace\"") || query.contains("ALERTS{");
            assert!(chosen, "{path}: {query}");
        }
    }
}

#[test]
fn every_metric_that_is_asked_for_is_in_a_reference() {
    let counters = std::fs::read_to_string(repository("docs/filter.md")).unwrap();
    let reference = std::fs::read_to_string(repository("docs/metrics.md")).unwrap();
    let mut asked = BTreeSet::new();
    for file in ["recording.yml", "alerts.yml"] {
        let path = repository("deploy/prometheus").join(file);
        asked.extend(metrics(&std::fs::read_to_string(path).unwrap()));
    }
    for (_, page) in files(&Description::read()) {
        asked.extend(queries(&page).flat_map(metrics));
    }
    assert!(asked.len() > 25, "{asked:?}");
    for name in asked {
        let has = |page: &str, name: &str| page.contains(&format!("`{name}`"));
        let known = has(&reference, family(&name))
            || has(&counters, &counter(&name))
            || has(&counters, &name);
        assert!(
            known,
            "neither docs/metrics.md nor docs/filter.md has {name}"
        );
    }
}

/// The name under which a histogram's parts are told.
fn family(name: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    parts
        .iter()
        .find_map(|part| name.strip_suffix(part))
        .unwrap_or(name)
}

/// What docs/filter.md calls a counter of the filter.
fn counter(name: &str) -> String {
    let name = name.strip_prefix("sluicegate_").unwrap_or(name);
    name.replacen("rule_limit_", "rule.RULE.limit.LIMIT.", 1)
        .replacen("rule_", "rule.RULE.", 1)
}

#[test]
fn what_is_provisioned_is_where_the_dashboards_look() {
    let read = |path: &str| -> Value {
        let text = std::fs::read_to_string(repository(path)).unwrap();
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let sources = read("deploy/grafana/provisioning/datasources/prometheus.yml");
    let prometheus = read("deploy/prometheus/prometheus.yml");
    // $__rate_interval is made from it; a wrong one makes empty charts.
    assert_eq!(
        sources["datasources"][0]["jsonData"]["timeInterval"],
        prometheus["global"]["scrape_interval"]
    );
    assert_eq!(sources["datasources"][0]["type"], "prometheus");
    let providers = read("deploy/grafana/provisioning/dashboards/sluicegate.yml");
    assert_eq!(providers["providers"][0]["type"], "file");
}
