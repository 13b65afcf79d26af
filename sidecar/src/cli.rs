//! The commands, a file each, and how they fail.

pub mod check_config;
pub mod estimate;
pub mod explain;
pub mod schema;
pub mod serve;
mod stdout;
pub mod top;

use std::fmt::{self, Display};
use std::process::ExitCode;

/// sysexits(3): the command was used wrongly, which includes its configuration.
const EX_USAGE: u8 = 64;

/// What is said before the process ends, and with which status.
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// The command or its configuration is wrong: trying again will not help.
    pub fn usage(error: impl Display) -> Self {
        Self {
            message: error.to_string(),
            status: EX_USAGE,
        }
    }

    /// The system did not allow it.
    pub fn system(error: impl Display) -> Self {
        Self {
            message: error.to_string(),
            status: 1,
        }
    }

    /// For the shell.
    pub fn status(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Tells what is wrong with the arguments, or the help that they ask for, as clap does; but no password.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let plain = error.to_string();
    let clean = without_urls(plain.clone());
    if clean == plain {
        // In colours where there are any. Nothing is left to do if nobody reads it.
        let _ = error.print();
    } else {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), clean.as_bytes());
    }
    // What clap calls a success is the help or the version that was asked for.
    if error.exit_code() == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EX_USAGE)
    }
}

/// What is told, without the URLs of the command line: one that stands in the wrong place would be repeated, and may
/// be the store's, with its password.
pub fn without_urls(told: String) -> String {
    std::env::args_os()
        .filter_map(|argument| argument.into_string().ok())
        // A password stands before an `@` or behind a `?`; an address without either is worth repeating.
        .filter(|argument| argument.contains("://") && argument.contains(['@', '?']))
        .fold(told, |told, argument| {
            told.replace(value(&argument), "<URL>")
        })
}

/// Of `--name=value` the value.
fn value(argument: &str) -> &str {
    match argument.split_once('=') {
        Some((name, value)) if name.starts_with("--") => value,
        _ => argument,
    }
}
