//! The tables: printed, and in docs/versions.md between two marks.

use sluicegate_tests::marked;

use crate::suite::{Cell, Column};

const PAGE: &str = "docs/versions.md";

/// One version.
pub struct Row {
    /// As the first cell shows it.
    pub version: String,
    cells: Vec<String>,
    failures: Vec<String>,
}

impl Row {
    /// Runs all columns.
    pub fn run(
        version: &str,
        origin: &str,
        columns: &[Column],
        cell: impl Fn(&Column) -> Cell,
    ) -> Self {
        let mut cells = vec![version.to_owned()];
        if !origin.is_empty() {
            cells.push(origin.to_owned());
        }
        let mut failures = Vec::new();
        for column in columns {
            match cell(column) {
                Cell::Passed(tests) => cells.push(format!("passed ({tests})")),
                Cell::Failed(names) => {
                    cells.push("**failed**".to_owned());
                    failures.extend(names);
                }
            }
            let last = &cells[cells.len() - 1];
            println!("versions: {version}: {}: {last}", column.0);
        }
        Self {
            version: version.to_owned(),
            cells,
            failures,
        }
    }

    /// One that cannot run, and why.
    pub fn skipped(version: &str, why: &str) -> Self {
        println!("versions: {version}: did not run: {why}");
        let cells = vec![version.to_owned(), format!("did not run: {why}")];
        Self {
            version: version.to_owned(),
            cells,
            failures: Vec::new(),
        }
    }
}

/// A table.
pub struct Table {
    name: &'static str,
    head: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    /// An empty one.
    pub fn new(name: &'static str, columns: &[Column]) -> Self {
        let mut head = vec![name.to_owned()];
        if name == "store" {
            head.push("from".to_owned());
        }
        head.extend(columns.iter().map(|column| column.0.to_owned()));
        Self {
            name,
            head,
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The tests that failed, each after its version.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        self.rows.iter().flat_map(|row| {
            row.failures
                .iter()
                .map(move |name| format!("{}: {name}", row.version))
        })
    }

    /// As Markdown.
    pub fn text(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = line(&self.head) + &"|---".repeat(self.head.len()) + "|\n";
        for row in &self.rows {
            let mut cells = row.cells.clone();
            cells.resize(self.head.len(), String::new());
            text += &line(&cells);
        }
        text
    }
}

/// Writes the tables into the page; a table without rows leaves what is there.
pub fn write(tables: &[Table]) {
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        marked::write(PAGE, table.name, &table.text());
    }
    println!("versions: wrote {PAGE}");
}
