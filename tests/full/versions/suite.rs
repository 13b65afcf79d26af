//! Parts of the other test binaries, run with another Envoy or another Redis.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::repository;

/// A column of a table: its title, and the tests to run: beginnings of their names, each after that of its binary.
pub struct Column(pub &'static str, pub &'static str);

/// A cell: whether its tests passed.
#[derive(Debug)]
pub enum Cell {
    /// That many passed.
    Passed(usize),
    /// These failed.
    Failed(Vec<String>),
}

/// The test binaries.
pub struct Suites(BTreeMap<String, PathBuf>);

impl Suites {
    /// Builds them.
    ///
    /// # Panics
    /// They do not compile.
    pub fn build() -> Self {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--locked", "--no-run"]);
        cargo.args(["-p", "sluicegate-tests", "-p", "sluicegate-tests-full"]);
        cargo.args(["--test", "core", "--test", "full", "--message-format=json"]);
        let output = cargo.current_dir(repository("")).output().expect("cargo");
        assert!(output.status.success(), "the tests do not compile");
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let found = messages.filter_map(|message: Value| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, message["executable"].as_str()?.into()))
        });
        Self(found.collect())
    }

    /// Runs a column's tests with a variable that names the program.
    ///
    /// # Panics
    /// A binary has no test of one of the names: what does not run has not passed.
    pub fn run(&self, column: &Column, variable: &str, program: &Path) -> Cell {
        let mut passed = 0;
        let mut failed = Vec::new();
        for (suite, binary) in &self.0 {
            let names = column.1.split_whitespace();
            let own = |name: &'static str| name.strip_prefix(suite)?.strip_prefix("::");
            let names: Vec<_> = names.filter_map(own).collect();
            if names.is_empty() {
                continue;
            }
            let mut command = Command::new(binary);
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
            for name in names {
                let there = ran.iter().any(|(test, _)| test.starts_with(name));
                assert!(there, "{suite} has no test {name}:\n{text}");
            }
            for (test, ok) in ran {
                if ok {
                    passed += 1;
                } else {
                    failed.push(format!("{suite} {test}"));
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
