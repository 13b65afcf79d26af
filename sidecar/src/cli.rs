//! The commands, one file each, and the code that they share.
//!
//! | file | for |
//! |---|---|
//! | `arguments.rs` | the commands by name |
//! | `exit.rs` | exit statuses |
//! | `checks.rs` | `--limit`, `--key`, `--cost` |
//! | `target.rs`, `direct.rs`, `admin.rs`, `admin_token.rs` | where requests go: a sidecar, the store in this process, an admin port |
//! | `endpoint.rs`, `client.rs` | addresses of sidecars, and requests to them |
//! | `overrides.rs`, `override_*.rs` | `override` and its commands |
//! | `envoy_example.rs` | the Envoy configuration that `render` and `dev` take values into |
//! | `manifests.rs`, `pepper.rs` | files that `check-config`, `explain` and `import` read, and those with a pepper |
//! | `output.rs`, `stdout.rs` | output formats, and standard output |

mod admin;
mod admin_token;
pub mod arguments;
mod check;
mod check_config;
mod check_store;
mod checks;
mod client;
mod compare;
mod completions;
mod consumers;
mod decide;
mod dev;
mod direct;
mod drain_envoy;
mod endpoint;
mod envoy_example;
pub mod exit;
mod explain;
mod import;
mod man;
mod manifests;
mod output;
mod override_list;
mod overrides;
mod peek;
mod pepper;
mod render;
mod reset;
mod rollout;
mod schema;
mod serve;
mod settle;
mod stdout;
mod target;
mod top;
mod trial;

use std::fmt::Display;
use std::process::ExitCode;

use exit::Exit;
use sluicegate::mask::masked;

/// The error message and exit status of a failed command.
#[derive(thiserror::Error, Debug)]
#[error("{message}")]
pub struct Failure {
    message: String,
    pub exit: Exit,
}

impl Failure {
    /// A failure with this exit status.
    pub fn new(exit: Exit, error: impl Display) -> Self {
        Self {
            message: error.to_string(),
            exit,
        }
    }

    /// The command or its configuration is wrong: trying again will not help.
    pub fn usage(error: impl Display) -> Self {
        Self::new(Exit::Usage, error)
    }

    /// The system refused an operation.
    pub fn system(error: impl Display) -> Self {
        Self::new(Exit::System, error)
    }

    /// The sidecar or the store did not answer.
    pub fn unavailable(error: impl Display) -> Self {
        Self::new(Exit::Unavailable, error)
    }
}

/// Prints the error message of a failed command, and returns its exit status.
pub fn report(failure: &Failure) -> ExitCode {
    let why = masked(&failure.message);
    stdout::eprint(&format!("sluicegate: {why}\n"));
    failure.exit.into()
}

/// Prints an error in the arguments, or the requested help, as clap does, but never a password.
pub fn refuse(error: &clap::Error) -> ExitCode {
    let plain = error.to_string();
    let clean = masked(&plain);
    if clean == plain {
        // In colour where the terminal supports it. A closed standard error changes nothing.
        let _ = error.print();
    } else {
        stdout::eprint(&clean);
    }
    // clap exits with 0 for `--help` and `--version`.
    match error.exit_code() {
        0 => Exit::Success.into(),
        _ => Exit::Usage.into(),
    }
}
