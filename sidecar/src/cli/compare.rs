//! `sluicegate compare`: the verdicts of envoyproxy/ratelimit beside those of rules in shadow.

use std::path::PathBuf;

use sluicegate::compare::Comparison;

use super::Failure;
use super::manifests::text_of;
use super::stdout::print;

/// Arguments of `compare`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate compare access.log\n\nMore:\n  docs/moving-envoy-ratelimit.md#3-compare"
)]
pub struct Compare {
    /// Envoy's access log, an object of JSON in each line: docs/moving-envoy-ratelimit.md has its format. `-` for standard input.
    #[arg(value_name = "FILE")]
    log: PathBuf,
}

impl Compare {
    pub fn run(self) -> Result<(), Failure> {
        let (_, text) = text_of(&self.log)?;
        let mut comparison = Comparison::default();
        text.lines().for_each(|line| comparison.add(line));
        print(&comparison.to_string())
    }
}
