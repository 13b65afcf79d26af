//! The printed table, and target/mesh/report.json.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use sluicegate_tests::marked;
use sluicegate_tests::process::repository;

use crate::mesh::Mesh;
use crate::traffic::Counts;

const PAGE: &str = "docs/versions.md";

/// What was counted.
#[derive(Debug)]
pub struct Report {
    started: Instant,
    rows: Vec<Row>,
    versions: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
struct Row {
    mesh: &'static str,
    scenario: &'static str,
    requests: u64,
    #[serde(flatten)]
    counts: Counts,
    seconds: f64,
    note: String,
}

impl Report {
    /// Starts the clock.
    pub fn start() -> Self {
        Self {
            started: Instant::now(),
            rows: Vec::new(),
            versions: BTreeMap::new(),
        }
    }

    /// Prints a note.
    pub fn note(&self, what: &str) {
        println!("mesh: {:>4} s  {what}", self.started.elapsed().as_secs());
    }

    /// Records a version that runs.
    pub fn version(&mut self, name: &'static str, version: &str) {
        self.versions.insert(name, version.to_owned());
    }

    /// Adds a scenario that passed.
    pub fn row(
        &mut self,
        mesh: &Mesh,
        scenario: &'static str,
        counts: Counts,
        took: Duration,
        note: &str,
    ) {
        self.note(&format!("{}: {scenario}: {note}", mesh.name));
        self.rows.push(Row {
            mesh: mesh.name,
            scenario,
            requests: counts.requests(),
            counts,
            seconds: (took.as_secs_f64() * 10.0).round() / 10.0,
            note: note.to_owned(),
        });
    }

    /// Writes the versions into docs/versions.md; for a run of everything.
    pub fn write_page(&self) {
        let mut text = "| what | version |\n|---|---|\n".to_owned();
        for (name, version) in &self.versions {
            text += &format!("| {name} | {version} |\n");
        }
        marked::write(PAGE, "mesh", &text);
        println!("mesh: wrote {PAGE}");
    }

    /// Prints the table and writes the file.
    fn finish(&self) {
        println!(
            "\n  {:<14} {:<34} {:>8} {:>6} {:>6} {:>6} {:>6} {:>8}",
            "mesh", "scenario", "requests", 200, 429, 503, "others", "seconds"
        );
        for row in &self.rows {
            println!(
                "  {:<14} {:<34} {:>8} {:>6} {:>6} {:>6} {:>6} {:>8.1}",
                row.mesh,
                row.scenario,
                row.requests,
                row.counts.ok,
                row.counts.denied,
                row.counts.unavailable,
                row.counts.other + row.counts.lost,
                row.seconds
            );
        }
        let versions = self.versions.iter();
        let versions: Vec<_> = versions
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        println!("\n  {}", versions.join(", "));
        let report = json!({ "versions": self.versions, "scenarios": self.rows });
        let text = serde_json::to_string_pretty(&report).expect("plain numbers");
        std::fs::write(repository("target/mesh/report.json"), text).expect("a file under target");
        println!("  written to target/mesh/report.json\n");
    }
}

impl Drop for Report {
    /// Also after a failure: what was counted before it.
    fn drop(&mut self) {
        self.finish();
    }
}
