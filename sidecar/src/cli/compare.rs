//! `sluicegate compare`: the verdicts of envoyproxy/ratelimit beside those of rules in shadow.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::PathBuf;

use sluicegate::compare::Comparison;

use super::Failure;
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
        let mut bytes = Vec::new();
        let read = match self.log.as_os_str() == "-" {
            true => stdin().read_to_end(&mut bytes),
            false => File::open(&self.log).and_then(|mut log| log.read_to_end(&mut bytes)),
        };
        let shown = self.log.display();
        read.map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
        // A request's line may have any bytes.
        let text = String::from_utf8_lossy(&bytes);
        let mut comparison = Comparison::default();
        text.lines().for_each(|line| comparison.add(line));
        print(&comparison.to_string())
    }
}
