//! Runs the command after `--` if its units are admitted.
//!
//! The command replaces this process (exec). A child process would need its signals, stops and terminal forwarded,
//! would outlive a killed parent, and its exit status would have to be translated. No work is left after the
//! start: units are returned only if the command cannot be started, and then exec returns.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use sluicegate_protocol::{Check, GiveBack, GivenBack};

use crate::cli::Failure;
use crate::cli::exit::Exit;
use crate::cli::target::Decider;

/// The units taken for the command.
pub struct Taken<'a> {
    pub checks: &'a [Check<'a>],
    /// One for each check, in the same order; empty if the decision was admitted without the store.
    pub receipts: &'a [String],
}

/// Replaces this process with the command. Returns only on an error.
pub async fn replace(
    program: &OsStr,
    arguments: &[OsString],
    decider: &Decider,
    taken: &Taken<'_>,
) -> Failure {
    let error = Command::new(program).args(arguments).exec();
    let exit = match error.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    let units = match return_units(decider, taken).await {
        Ok(()) => "its units were returned".to_owned(),
        Err(why) => format!("its units could not be returned: {why}"),
    };
    Failure::new(
        exit,
        format_args!("{}: {error}; {units}", program.display()),
    )
}

async fn return_units(decider: &Decider, taken: &Taken<'_>) -> Result<(), String> {
    if taken.receipts.len() != taken.checks.len() {
        return Err("the verdict has no receipts".to_owned());
    }
    let entries = taken.checks.iter().zip(taken.receipts);
    let entries = entries.map(|(check, receipt)| GiveBack {
        limit: check.limit.clone(),
        key: check.key.clone(),
        receipt: receipt.as_str().into(),
        units: None,
    });
    let entries: Vec<_> = entries.collect();
    let given_back = decider.give_back(&entries).await;
    for outcome in given_back.map_err(|failure| failure.to_string())? {
        match outcome {
            GivenBack::GivenBack { .. } => {}
            GivenBack::Unavailable => return Err(decider.why_unavailable()),
            GivenBack::Error(problem) => return Err(problem.to_string()),
        }
    }
    Ok(())
}
