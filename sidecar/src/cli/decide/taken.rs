//! Units that were taken, and are returned if nobody can use them.

use sluicegate_protocol::{Check, GiveBack, GivenBack};

use crate::cli::Failure;
use crate::cli::exit::Exit;
use crate::cli::target::Decider;

/// The units of a decision.
pub struct Taken<'a> {
    pub checks: &'a [Check<'a>],
    /// One for each check, in the same order; empty if the decision was admitted without the store.
    pub receipts: &'a [String],
}

impl Taken<'_> {
    /// Returns the units after an error, and adds to it whether that succeeded.
    pub async fn give_back(&self, decider: &Decider, exit: Exit, error: String) -> Failure {
        let units = match self.return_units(decider).await {
            Ok(()) => "the units were returned".to_owned(),
            Err(why) => format!("the units could not be returned: {why}"),
        };
        Failure::new(exit, format_args!("{error}; {units}"))
    }

    async fn return_units(&self, decider: &Decider) -> Result<(), Failure> {
        if self.receipts.len() != self.checks.len() {
            return Err(Failure::system("the verdict has no receipts"));
        }
        let entries = self.checks.iter().zip(self.receipts);
        let entries = entries.map(|(check, receipt)| GiveBack {
            limit: check.limit.clone(),
            key: check.key.clone(),
            receipt: receipt.as_str().into(),
            units: None,
        });
        let entries: Vec<_> = entries.collect();
        for outcome in decider.give_back(&entries).await? {
            match outcome {
                GivenBack::GivenBack { .. } => {}
                GivenBack::Unavailable => return Err(decider.unavailable()),
                GivenBack::Error(problem) => return Err(Failure::usage(problem)),
            }
        }
        Ok(())
    }
}
