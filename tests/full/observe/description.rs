//! `deploy/grafana/dashboards.yaml` as types. The head of that file explains the fields.

use std::collections::BTreeMap;

use serde::Deserialize;
use sluicegate_tests_full::documents::text;

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub selectors: BTreeMap<String, String>,
    pub variables: Vec<Variable>,
    pub annotations: Vec<Annotation>,
    pub dashboards: Vec<Dashboard>,
}

/// A variable at the top of a dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    pub label: String,
    pub values: String,
}

/// Events that are marked in every chart.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Annotation {
    pub name: String,
    pub color: String,
    pub query: String,
    pub text: String,
}

/// One dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dashboard {
    pub name: String,
    pub title: String,
    pub says: String,
    pub rows: Vec<Row>,
}

/// Panels side by side, under a heading if the row has a title.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub title: Option<String>,
    #[serde(default = "eight")]
    pub height: u32,
    pub panels: Vec<Panel>,
}

const fn eight() -> u32 {
    8
}

/// Grafana's name for no unit.
fn none() -> String {
    "none".to_owned()
}

/// One panel.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    pub title: String,
    pub says: String,
    pub kind: Kind,
    #[serde(default = "none")]
    pub unit: String,
    pub max: Option<f64>,
    /// A logarithmic axis, for values that span several powers of ten.
    #[serde(default)]
    pub log: bool,
    #[serde(default)]
    pub thresholds: BTreeMap<String, f64>,
    #[serde(default)]
    pub values: BTreeMap<String, Word>,
    #[serde(default)]
    pub now: bool,
    #[serde(default)]
    pub quiet: bool,
    pub queries: Vec<Query>,
}

/// How a panel is drawn.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Stat,
    Timeseries,
    Bars,
    Heatmap,
    Table,
}

/// A text that replaces a value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    pub text: String,
    pub color: String,
}

/// One query.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    pub expr: String,
    /// The legend of a line or bar.
    pub legend: Option<String>,
    /// The heading of a table's column, and its unit.
    pub column: Option<String>,
    pub unit: Option<String>,
}

impl Description {
    /// Reads the file.
    pub fn read() -> Self {
        let read = serde_saphyr::from_str(&text("deploy/grafana/dashboards.yaml"));
        read.unwrap_or_else(|error| panic!("deploy/grafana/dashboards.yaml: {error}"))
    }

    /// A query with its selectors substituted.
    pub fn selected(&self, query: &str) -> String {
        let mut selected = query.to_owned();
        for (name, selector) in &self.selectors {
            selected = selected.replace(&format!("<{name}>"), selector);
        }
        let mut rests = selected.split('<').skip(1);
        let unknown = rests.any(|rest| rest.starts_with(char::is_alphabetic));
        assert!(!unknown, "dashboards.yaml lacks a selector: {query}");
        selected
    }
}
