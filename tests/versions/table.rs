//! The tables: printed, and in docs/versions.md between two marks.

use std::collections::BTreeMap;

use serde::Deserialize;
use sluicegate_tests::process::repository;

use crate::suite::{Cell, Column};

const PAGE: &str = "docs/versions.md";
/// Written by `make mesh`.
const MESH: &str = "target/mesh/versions.json";

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
            println!(
                "versions: {version}: {}: {}",
                column.title,
                cells[cells.len() - 1]
            );
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
        head.extend(columns.iter().map(|column| column.title.to_owned()));
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

/// A row of the mesh's table, as `make mesh` writes it.
#[derive(Deserialize)]
struct Mesh {
    /// The product: Kubernetes, Istio, Envoy Gateway.
    product: String,
    version: String,
    /// What `make mesh` did with it.
    ran: String,
}

/// What `make mesh` ran last; empty if it has not run here.
pub fn mesh() -> Table {
    let mut table = Table::new("mesh", &[]);
    table.head = ["mesh", "version", "what ran"].map(str::to_owned).into();
    let Ok(text) = std::fs::read_to_string(repository(MESH)) else {
        return table;
    };
    let rows: Vec<Mesh> = serde_json::from_str(&text).expect(MESH);
    for Mesh {
        product,
        version,
        ran,
    } in rows
    {
        let cells = vec![product, version.clone(), ran];
        table.add(Row {
            version,
            cells,
            failures: Vec::new(),
        });
    }
    table
}

/// Writes the tables into the page; a table without rows leaves what is there.
pub fn write(tables: &[Table]) {
    let path = repository(PAGE);
    let mut page = std::fs::read_to_string(&path).expect(PAGE);
    let filled: BTreeMap<_, _> = tables
        .iter()
        .filter(|table| !table.rows.is_empty())
        .map(|table| (table.name, table.text()))
        .collect();
    for (name, text) in filled {
        let (begin, end) = (format!("<!-- {name}: "), format!("<!-- end of {name} -->"));
        let start = page
            .find(&begin)
            .and_then(|at| Some(at + page[at..].find('\n')? + 1));
        let stop = page.find(&end);
        let (Some(start), Some(stop)) = (start, stop) else {
            panic!("{PAGE} has no marks of {name}")
        };
        page.replace_range(start..stop, &format!("\n{text}\n"));
    }
    std::fs::write(&path, page).expect(PAGE);
    println!("versions: wrote {PAGE}");
}
