//! The committed dashboards match their description and meet the rules for panels and queries.
//! `make dashboards` regenerates the dashboards.

use std::collections::BTreeSet;

use serde_json::Value;
use sluicegate_tests_full::documents::{is_up_to_date, text, yaml};

use super::description::Description;
use super::grafana::files;

/// Every metric name in a query or a file of rules.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let starts = ["sluicegate_", "process_", "envoy_wasm"];
    // What ends so is the beginning of several, in a regular expression.
    let ours = words
        .filter(|word| starts.iter().any(|start| word.starts_with(start)) && !word.ends_with('_'));
    ours.map(str::to_owned).collect()
}

/// Likewise, in the files of rules.
pub fn metrics_of_the_rules() -> BTreeSet<String> {
    let files = ["recording.yml", "alerts.yml"];
    let texts = files.map(|file| text(format!("deploy/prometheus/{file}")));
    metrics(&texts.concat())
}

/// Every panel of a dashboard except row headings.
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
fn the_committed_dashboards_match_the_description() {
    for (path, made) in files(&Description::read()) {
        let text = serde_json::to_string_pretty(&made).unwrap() + "\n";
        is_up_to_date(&path, &text, "dashboards");
    }
}

#[test]
fn every_panel_has_a_description_and_a_title_and_position_of_its_own() {
    for (path, page) in files(&Description::read()) {
        let mut taken = BTreeSet::new();
        for panel in page["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{path}: {title}");
            let columns = at("x")..at("x") + at("w");
            let mut cells = columns.flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)));
            let free = cells.all(|cell| taken.insert(cell));
            assert!(free, "{path}: {title} overlaps another panel");
        }
        let mut titles = BTreeSet::new();
        for panel in panels(&page) {
            let title = panel["title"].as_str().unwrap();
            assert!(titles.insert(title), "{path}: two are called {title}");
            let says = panel["description"].as_str().unwrap();
            assert!(says.ends_with('.'), "{path}: {title}");
        }
    }
}

#[test]
fn every_query_uses_the_variables_at_the_top() {
    for (path, page) in files(&Description::read()) {
        for query in queries(&page) {
            let chosen = query.contains("=~\"$namespace\"") || query.contains("ALERTS{");
            assert!(chosen, "{path}: {query}");
        }
    }
}

#[test]
fn every_metric_in_a_query_is_documented() {
    let page = text("docs/metrics.md");
    let mut asked = metrics_of_the_rules();
    for (_, page) in files(&Description::read()) {
        asked.extend(queries(&page).flat_map(metrics));
    }
    assert!(asked.len() > 25, "{asked:?}");
    for name in asked {
        let has = |name: &str| page.contains(&format!("`{name}`"));
        let known = has(family(&name)) || has(&counter(&name)) || has(&name);
        assert!(known, "docs/metrics.md lacks {name}");
    }
}

/// The name of the family that a histogram's series belongs to.
fn family(name: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    let mut found = parts.iter().filter_map(|part| name.strip_suffix(part));
    found.next().unwrap_or(name)
}

/// What docs/metrics.md calls a counter of the filter.
fn counter(name: &str) -> String {
    let name = name.strip_prefix("sluicegate_").unwrap_or(name);
    match name.strip_prefix("rule_") {
        Some(rest) if rest.starts_with("limit_") => {
            format!("rule=.=RULE;.;limit=.=LIMIT;.;rule_{rest}")
        }
        Some(rest) => format!("rule=.=RULE;.;rule_{rest}"),
        None => name.to_owned(),
    }
}

#[test]
fn grafanas_provisioning_matches_prometheus_and_the_dashboards() {
    let source = yaml("deploy/grafana/provisioning/datasources/prometheus.yml");
    let source = &source["datasources"][0];
    let prometheus = yaml("deploy/prometheus/prometheus.yml");
    // Grafana computes $__rate_interval from it; a wrong value makes charts empty.
    let interval = &prometheus["global"]["scrape_interval"];
    assert_eq!(source["jsonData"]["timeInterval"], *interval);
    assert_eq!(source["type"], "prometheus");
    let providers = yaml("deploy/grafana/provisioning/dashboards/sluicegate.yml");
    assert_eq!(providers["providers"][0]["type"], "file");
}
