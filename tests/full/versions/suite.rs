//! Parts of the other test binaries, run with another Envoy or another Redis.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::repository;

/// A column of a table: tests of one or several binaries.
pub struct Column {
    /// The column's title.
    pub title: &'static str,
    /// Names of test binaries, each with the tests to run: beginnings of their names.
    pub tests: &'static [(&'static str, &'static [&'static str])],
}

/// A cell: whether its tests passed.
#[derive(Debug)]
pub enum Cell {
    /// That many passed.
    Passed(usize),
    /// These failed.
    Failed(Vec<String>),
}

/// The binary of the core's tests.
pub struct Suites(PathBuf);

impl Suites {
    /// Builds them.
    ///
    /// # Panics
    /// They do not compile.
    pub fn build() -> Self {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--locked", "--no-run"]);
        cargo.args(["-p", "sluicegate-tests", "--message-format=json"]);
        cargo.args(["--test", "core", "--no-default-features"]);
        let output = cargo.current_dir(repository("")).output().expect("cargo");
        assert!(output.status.success(), "the tests do not compile");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut messages = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let found = messages.find_map(|message: Value| {
            (message["target"]["name"] == "core")
                .then(|| message["executable"].as_str().map(PathBuf::from))?
        });
        Self(found.expect("cargo names the binary"))
    }

    /// Runs a column's tests with a variable that names the program.
    ///
    /// # Panics
    /// A binary has no test of one of the names: what does not run has not passed.
    pub fn run(&self, column: &Column, variable: &str, program: &Path) -> Cell {
        let mut passed = 0;
        let mut failed = Vec::new();
        for (suite, names) in column.tests {
            let names: Vec<_> = names
                .iter()
                .map(|name| format!("{suite}::{name}"))
                .collect();
            let mut command = Command::new(&self.0);
            command
                .args(&names)
                // Cargo's folder for tests, and two at a time: some start thousands of clients.
                .current_dir(repository("tests"))
                .args(["--test-threads", "2"])
                .env("RUST_BACKTRACE", "0")
                .env(variable, program);
            let output = command.output().expect("a test binary");
            let text = String::from_utf8_lossy(&output.stdout);
            let ran: Vec<_> = text.lines().filter_map(result).collect();
            for name in &names {
                let there = ran.iter().any(|(test, _)| test.starts_with(name.as_str()));
                assert!(there, "there is no test {name}:\n{text}");
            }
            for (test, ok) in ran {
                if ok {
                    passed += 1;
                } else {
                    failed.push(test.to_owned());
                }
            }
            let crashed = !output.status.success() && failed.is_empty();
            if crashed {
                failed.push(format!("{suite} {}", output.status));
            }
            if !failed.is_empty() {
                keep(program, suite, &[output.stdout, output.stderr].concat());
            }
        }
        if failed.is_empty() {
            Cell::Passed(passed)
        } else {
            Cell::Failed(failed)
        }
    }
}

/// A test's name and whether it passed, from the line that reports it.
fn result(line: &str) -> Option<(&str, bool)> {
    let line = line.strip_prefix("test ")?;
    // What a test prints may stand between its name and its result.
    let (name, rest) = line.split_once(" ... ")?;
    Some((name, rest.ends_with("ok")))
}

/// Keeps a failed run's output.
fn keep(program: &Path, suite: &str, text: &[u8]) {
    let folder = repository("target/versions/logs");
    fs::create_dir_all(&folder).expect("a folder for logs");
    let name = program.display().to_string().replace(['/', '.'], "-");
    fs::write(folder.join(format!("{name}-{suite}.log")), text).expect("a log");
}
