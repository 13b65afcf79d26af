//! Runs the command after `--` if its units are admitted.
//!
//! The command replaces this process (exec). A child process would need its signals, stops and terminal forwarded,
//! would outlive a killed parent, and its exit status would have to be translated. No work is left after the
//! start: units are returned only if the command cannot be started, and then exec returns.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::cli::exit::Exit;

/// Replaces this process with the command. Returns only on an error: the exit status for it, and what to say.
pub fn replace(program: &OsStr, arguments: &[OsString]) -> (Exit, String) {
    let error = Command::new(program).args(arguments).exec();
    let exit = match error.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    (exit, format!("{}: {error}", program.display()))
}
