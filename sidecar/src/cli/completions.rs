//! `sluicegate completions`: prints a shell completion script.

use clap::Command;
use clap_complete::Shell;

use super::Failure;
use super::stdout::print;

/// Arguments of `completions`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate completions bash > /etc/bash_completion.d/sluicegate\n\nMore:\n  docs/jobs.md#completions-and-manual-pages"
)]
pub struct Completions {
    /// The shell to print a script for.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints the script for these commands.
    pub fn run(self, mut all: Command) -> Result<(), Failure> {
        // Into a buffer: the library panics when standard output is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut all, "sluicegate", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
