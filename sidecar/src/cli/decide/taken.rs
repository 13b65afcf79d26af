//! Settles units that were taken: those that the caller cannot use come back, and a command's are what it says.

use sluicegate_protocol::{Check, Settle, Settled};

use super::ASK_AGAIN;
use crate::cli::Failure;
use crate::cli::exit::Exit;
use crate::cli::target::Decider;

/// How often a settle is tried that was not answered.
const TRIES: usize = 5;

/// The checks of a decision, and a receipt for each, in the same order; none if it was admitted without the store.
pub type Units<'a> = (&'a [Check<'a>], &'a [String]);

/// Returns the units after an error, and adds to it whether that succeeded.
pub async fn undo(decider: &Decider, units: Units<'_>, exit: Exit, error: String) -> Failure {
    let units = match settle(decider, units, 0).await {
        Ok(_) => "the units were returned".to_owned(),
        Err(why) => format!("the units could not be returned: {why}"),
    };
    Failure::new(exit, format_args!("{error}; {units}"))
}

/// Settles each check with so many units.
pub async fn settle(
    decider: &Decider,
    (checks, receipts): Units<'_>,
    used: u64,
) -> Result<Vec<Settled>, Failure> {
    if receipts.len() != checks.len() {
        return Err(Failure::system("the verdict has no receipts"));
    }
    let entries = checks.iter().zip(receipts);
    // An override took nothing of those without one.
    let entries = entries.filter(|(_, receipt)| !receipt.is_empty());
    let entries = entries.map(|(check, receipt)| Settle {
        limit: check.limit.clone(),
        key: check.key.clone(),
        receipt: receipt.as_str().into(),
        units: Some(used),
        within_ms: None,
    });
    let entries: Vec<_> = entries.collect();
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    settle_entries(decider, &entries).await
}

/// Settles these, several times if that is not answered.
pub async fn settle_entries(
    decider: &Decider,
    entries: &[Settle<'_>],
) -> Result<Vec<Settled>, Failure> {
    let mut tries = 1..TRIES;
    loop {
        let unanswered = match decider.settle(entries).await {
            Ok(outcomes) if outcomes.contains(&Settled::Unavailable) => decider.unavailable(),
            Err(failure) if failure.exit == Exit::Unavailable => failure,
            answered => return answered.and_then(valid),
        };
        if tries.next().is_none() {
            return Err(unanswered);
        }
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn valid(outcomes: Vec<Settled>) -> Result<Vec<Settled>, Failure> {
    let problem = outcomes.iter().find_map(|outcome| match outcome {
        Settled::Error(problem) => Some(Failure::usage(problem)),
        _ => None,
    });
    problem.map_or(Ok(outcomes), Err)
}
