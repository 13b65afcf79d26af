//! The commands, a file each, and how they fail.

pub mod check_config;
pub mod estimate;
pub mod explain;
pub mod schema;
pub mod serve;
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
