//! `deploy/grafana/dashboards.yaml` as types. What the fields mean stands at the head of that file.

use std::collections::BTreeMap;

use serde::Deserialize;
use sluicegate_tests::process::repository;

/// All of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub selectors: BTreeMap<String, String>,
    pub variables: Vec<Variable>,
    pub annotations: Vec<Annotation>,
    pub dashboards: Vec<Dashboard>,
}

/// What one can choose at the top of a dashboard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    pub name: String,
    pub label: String,
    pub values: String,
}

/// Moments that are marked in every chart.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Annotation {
    pub name: String,
    pub color: String,
    pub query: String,
    pub text: String,
}

/// One page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dashboard {
    pub name: String,
    pub title: String,
    pub says: String,
    pub rows: Vec<Row>,
}

/// Panels side by side, under a heading where it has a title.
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

/// One picture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Panel {
    pub title: String,
    pub says: String,
    pub kind: Kind,
    #[serde(default = "none")]
    pub unit: String,
    pub max: Option<f64>,
    /// Powers of ten at even distances: for what spans several of them.
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

/// How it is drawn.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Stat,
    Timeseries,
    Bars,
    Heatmap,
    Table,
}

/// A word instead of a value.
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
    /// Of a line or bar.
    pub legend: Option<String>,
    /// Of a table: its heading, and its unit.
    pub column: Option<String>,
    pub unit: Option<String>,
}

impl Description {
    /// The file.
    pub fn read() -> Self {
        let text = std::fs::read_to_string(repository("deploy/grafana/dashboards.yaml")).unwrap();
        serde_saphyr::from_str(&text)
            .unwrap_or_else(|error| panic!("deploy/grafana/dashboards.yaml: {error}"))
    }

    /// A query with the selectors put in.
    pub fn selected(&self, query: &str) -> String {
        let mut selected = query.to_owned();
        for (name, selector) in &self.selectors {
            selected = selected.replace(&format!("<{name}>"), selector);
        }
        let unknown = selected
            .split('<')
            .skip(1)
            .any(|rest| rest.starts_with(char::is_alphabetic));
        assert!(
            !unknown,
            "a selector that dashboards.yaml does not have: {query}"
        );
        selected
    }
}
