//! Returns units that were taken and that the caller can no longer use.

use sluicegate_protocol::{Check, GiveBack, GivenBack};

use crate::cli::Failure;
use crate::cli::exit::Exit;
use crate::cli::target::Decider;

/// The checks of a decision, and a receipt for each, in the same order; none if it was admitted without the store.
pub type Units<'a> = (&'a [Check<'a>], &'a [String]);

/// Returns the units after an error, and adds to it whether that succeeded.
pub async fn undo(decider: &Decider, units: Units<'_>, exit: Exit, error: String) -> Failure {
    let units = match return_units(decider, units).await {
        Ok(()) => "the units were returned".to_owned(),
        Err(why) => format!("the units could not be returned: {why}"),
    };
    Failure::new(exit, format_args!("{error}; {units}"))
}

async fn return_units(decider: &Decider, (checks, receipts): Units<'_>) -> Result<(), Failure> {
    if receipts.len() != checks.len() {
        return Err(Failure::system("the verdict has no receipts"));
    }
    let entries = checks.iter().zip(receipts);
    let entries = entries.map(|(check, receipt)| GiveBack {
        limit: check.limit.clone(),
        key: check.key.clone(),
        receipt: receipt.as_str().into(),
        units: None,
    });
    let entries: Vec<_> = entries.collect();
    for outcome in decider.settle(&entries).await? {
        match outcome {
            GivenBack::GivenBack { .. } => {}
            GivenBack::Unavailable => return Err(decider.unavailable()),
            GivenBack::Error(problem) => return Err(Failure::usage(problem)),
        }
    }
    Ok(())
}
