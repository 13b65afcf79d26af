//! `sluicegate man`: prints manual pages, generated from the same definitions as `--help`.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::Failure;
use super::stdout::print;

/// Arguments of `man`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  sluicegate man decide > sluicegate-decide.1\n\nMore:\n  docs/jobs.md#completions-and-manual-pages"
)]
pub struct Manual {
    /// The command to print the page of, such as `decide` or `override set`; the default is `sluicegate` itself.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

impl Manual {
    /// Prints the page of one of these commands.
    pub fn run(self, all: Command) -> Result<(), Failure> {
        let mut all = all.disable_help_subcommand(true);
        // Sets the full names of the commands.
        all.build();
        let mut wanted = &all;
        for name in &self.command {
            wanted = wanted.find_subcommand(name).ok_or_else(|| {
                let names: Vec<_> = wanted.get_subcommands().map(Command::get_name).collect();
                let of = wanted.get_bin_name().unwrap_or_default();
                Failure::usage(format_args!(
                    "`{of}` has no command `{name}` (its commands: {})",
                    names.join(", ")
                ))
            })?;
        }
        let page = page(wanted).map_err(Failure::system)?;
        print(&String::from_utf8_lossy(&page))
    }
}

/// Renders a page. The text after the options has its own headings; the library would put them under "EXTRA".
fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone().after_help(None::<&str>)).render(&mut page)?;
    if let Some(after) = command.get_after_help() {
        sections(&after.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Turns each line that ends in a colon into a section heading, and keeps the lines below it as they are.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::new();
    for line in text.lines() {
        match line.strip_suffix(':') {
            Some(heading) if !line.starts_with(' ') => {
                roff.control("SH", [heading.to_uppercase().as_str()]);
                roff.control("nf", []);
            }
            _ => {
                roff.text([roman(line)]);
            }
        }
    }
    roff
}
