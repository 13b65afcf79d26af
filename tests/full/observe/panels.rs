//! Runs the queries of a dashboard as Grafana does: with variables substituted, as instant or range queries.

use std::collections::BTreeMap;

use serde_json::Value;
use sluicegate_tests_full::prometheus::{Prometheus, SCRAPE_SECONDS, Series};

use super::committed::panels;
use super::description::{Description, Panel};

/// A time span, and the values chosen for the page's variables.
pub struct View<'a> {
    prometheus: &'a Prometheus,
    pub from: f64,
    pub to: f64,
    chosen: BTreeMap<String, String>,
}

/// What a panel shows: the legend and the series of each query.
pub struct Shown<'a> {
    pub panel: &'a Value,
    pub queries: Vec<(String, Vec<Series>)>,
}

impl<'a> View<'a> {
    /// Chooses "All" for every variable.
    pub fn all(prometheus: &'a Prometheus, page: &Value, from: f64, to: f64) -> Self {
        let all = |variable: &Value| text(&variable["allValue"]);
        let chosen = variables(page).map(|one| (text(&one["name"]), all(one)));
        Self {
            prometheus,
            from,
            to,
            chosen: chosen.collect(),
        }
    }

    /// Chooses every existing value explicitly, for each variable that has any.
    pub async fn each(mut self, page: &Value) -> Self {
        for variable in variables(page) {
            let query = self.put_in(&text(&variable["query"]["query"]));
            let inner = query.strip_prefix("label_values(");
            let inner = inner.and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "));
            let values = inner.unwrap_or_else(|| panic!("cannot parse the query: {query}"));
            let values = self.prometheus.label_values(values.1, values.0).await;
            if !values.is_empty() {
                let values: Vec<_> = values.iter().map(|value| escaped(value)).collect();
                let name = text(&variable["name"]);
                self.chosen.insert(name, format!("({})", values.join("|")));
            }
        }
        self
    }

    /// How many variables have values to choose from.
    pub fn choices(&self) -> usize {
        let chosen = self.chosen.values();
        chosen.filter(|value| value.starts_with('(')).count()
    }

    fn put_in(&self, query: &str) -> String {
        let mut query = query
            // Four scrapes, where the charts' step is as short as a scrape.
            .replace("$__rate_interval", &format!("{}s", 4 * SCRAPE_SECONDS))
            .replace("$__range", &format!("{:.0}s", self.to - self.from));
        for (name, value) in &self.chosen {
            query = query.replace(&format!("${name}"), value);
        }
        assert!(!query.contains('$'), "an unknown variable: {query}");
        query
    }

    /// Runs a query, as an instant query if `now`.
    pub async fn ask(&self, query: &str, now: bool) -> Vec<Series> {
        let query = self.put_in(query);
        if now {
            self.prometheus.at(&query, self.to).await
        } else {
            self.prometheus.between(&query, self.from, self.to).await
        }
    }

    /// Runs the queries of every panel of a page.
    pub async fn of<'p>(&self, page: &'p Value) -> Vec<Shown<'p>> {
        let mut shown = Vec::new();
        for panel in panels(page) {
            let mut queries = Vec::new();
            for target in panel["targets"].as_array().unwrap() {
                let now = target["instant"].as_bool().unwrap();
                let series = self.ask(&text(&target["expr"]), now).await;
                queries.push((text(&target["legendFormat"]), series));
            }
            shown.push(Shown { panel, queries });
        }
        shown
    }
}

/// What is wrong with a panel's data, if anything.
pub fn fault(shown: &Shown<'_>, panel: &Panel) -> Option<String> {
    let values = |series: &[Series]| -> Vec<f64> {
        let points = series.iter().flat_map(|one| &one.points);
        points.map(|point| point.1).collect()
    };
    for (n, (_, series)) in shown.queries.iter().enumerate() {
        let values = values(series);
        let expr = &shown.panel["targets"][n]["expr"];
        if values.is_empty() {
            return Some(format!("no data: {expr}"));
        }
        let most = panel.max.unwrap_or(f64::MAX);
        let good = |value: &f64| value.is_finite() && (0.0..=most * 1.000_001).contains(value);
        if let Some(bad) = values.iter().find(|value| !good(value)) {
            return Some(format!("{bad}, of at most {most}: {expr}"));
        }
    }
    let mut all = shown.queries.iter().flat_map(|(_, series)| values(series));
    let zeros = all.all(|value| value == 0.0);
    (zeros && !panel.quiet).then(|| "only zeros".to_owned())
}

/// The most that a panel's first query shows of a limit.
pub fn most_of(shown: &Shown<'_>, limit: &str) -> f64 {
    let (_, series) = &shown.queries[0];
    let one = series.iter().find(|one| one.label("limit") == limit);
    let points = &one.unwrap_or_else(|| panic!("no {limit}")).points;
    points.iter().fold(0.0, |most, point| most.max(point.1))
}

/// The panels of a dashboard, in the order of `panels`.
pub fn described<'d>(description: &'d Description, name: &str) -> Vec<&'d Panel> {
    let mut all = description.dashboards.iter();
    let dashboard = all.find(|one| one.name == name).unwrap();
    dashboard.rows.iter().flat_map(|row| &row.panels).collect()
}

/// The variables whose values come from Prometheus.
fn variables(page: &Value) -> impl Iterator<Item = &Value> {
    let all = page["templating"]["list"].as_array().unwrap().iter();
    all.filter(|one| one["type"] == "query")
}

/// Escapes a value for a regular expression inside a quoted string of a query.
fn escaped(value: &str) -> String {
    let escaped = value.chars().map(|c| match c {
        c if r"\^$*+?.()|{}[]/".contains(c) => format!(r"\\{c}"),
        c => c.to_string(),
    });
    escaped.collect()
}

fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_else(|| panic!("{value}"));
    text.to_owned()
}
