//! `sluicegate compare`: the verdicts of envoyproxy/ratelimit beside those of rules in shadow.

use std::io::BufRead;
use std::path::PathBuf;

use sluicegate::compare::Comparison;

use super::Failure;
use super::manifests::{cannot_read, open};
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
        let (shown, log) = open(&self.log)?;
        let mut comparison = Comparison::default();
        for line in log.split(b'\n') {
            let line = line.map_err(|error| cannot_read(&shown, &error))?;
            // A request's line may have any bytes.
            comparison.add(&String::from_utf8_lossy(&line));
        }
        print(&comparison.to_string())?;
        if comparison.is_empty() {
            return Err(Failure::usage(format!(
                "no line of {shown} has both verdicts: see docs/moving-envoy-ratelimit.md#2-run-both for the log's format"
            )));
        }
        Ok(())
    }
}
