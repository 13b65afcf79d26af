//! `sluicegate test`: runs tables of requests through a policy, in virtual time.

use std::path::{Path, PathBuf};

use sluicegate::policy::Policy;
use sluicegate::trial::{Tests, Trial};

use super::Failure;
use super::manifests::text_of;
use super::pepper;
use super::stdout::{line, print};

/// Arguments of `test`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  sluicegate test policy.test.yaml\n\nMore:\n  docs/test.md")]
pub struct Test {
    /// Files with tests (YAML), which name their policy: docs/test.md.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

impl Test {
    pub fn run(self) -> Result<(), Failure> {
        let (mut rows, mut failed) = (0, String::new());
        for file in &self.files {
            rows += run(file, &mut failed)?;
        }
        if failed.is_empty() {
            return print(&format!("{rows} rows are as expected\n"));
        }
        print(&failed)?;
        let failed = failed.lines().count();
        Err(Failure::system(format!(
            "{failed} of {rows} rows are not as expected"
        )))
    }
}

/// Runs the tests of a file, with a line for each row that is not as expected; how many rows there are.
fn run(path: &Path, failed: &mut String) -> Result<usize, Failure> {
    let (file, text) = text_of(path)?;
    let tests = Tests::read(&text);
    let tests = tests.map_err(|(line, why)| Failure::usage(format!("{file}:{line}: {why}")))?;
    let beside = |name: &Path| path.parent().unwrap_or(path).join(name);
    let policy = Policy::load(&beside(&tests.policy)).map_err(Failure::usage)?;
    let pepper = tests.pepper_file.as_deref();
    let pepper = pepper.map(|name| pepper::read(&beside(name))).transpose()?;
    let set = tests.set.as_deref().unwrap_or("default");
    let trial = Trial::new(&policy, set, pepper.as_deref().unwrap_or_default());
    let mut trial = trial.map_err(|why| Failure::usage(format!("{file}: {why}")))?;
    let mut rows = 0;
    for test in &tests.tests {
        trial.start_again();
        for row in &test.rows {
            let at = format!("{file}:{}: {}: {}", row.line, test.name, row.name);
            let mut first = None;
            for number in 1..=row.times {
                let outcome = trial.request(row);
                let outcome =
                    outcome.map_err(|why| Failure::usage(format!("{at}: {}", why.message)))?;
                if !outcome.has(&row.expected) {
                    first.get_or_insert((number, outcome));
                }
            }
            if let Some((number, outcome)) = first {
                let (times, expected) = (row.times, &row.expected);
                line!(
                    failed,
                    "{at}, {number} of {times}: expected {expected}; got {outcome}"
                );
            }
        }
        rows += test.rows.len();
    }
    Ok(rows)
}
