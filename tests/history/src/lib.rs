//! Checks a history of decisions, as clients saw them, against promises 1 to 4 of `docs/promises.md`.
//!
//! | file | for |
//! |---|---|
//! | `record.rs` | what a run records |
//! | `uses.rs` | what was taken from one limit for one subject, summed up by time |
//! | `over.rs` | the first promise: never over |
//! | `denials.rs` | the second and third: never wrongly denied, all or nothing |
//! | `retry.rs` | the fourth: a true Retry-After |
//! | `origin.rs` | when a denial that may come from a cache was first made |
//! | `report.rs` | what is found |
//!
//! A client knows when it asked and when it was answered, not when the decision was made in between. So every statement
//! is about all instants that are possible: what is reported as wrong is wrong for certain, whichever of them it was. With
//! exact times (`Span::exact`), as in tests of the engine, nothing is left to doubt.
//!
//! This crate depends on nothing: it shares no arithmetic with the engine, the script or their model.

mod denials;
mod origin;
mod over;
mod record;
mod report;
mod retry;
mod uses;

pub use record::{Check, Disturbance, History, Kind, Limit, Record, Span, Verdict, Window};
pub use report::{Peak, Report, Violation, Wrong};

use uses::Ledger;

/// Checks the whole history.
#[must_use]
pub fn check(history: &History) -> Report {
    let ledger = Ledger::of(history);
    let mut report = Report::default();
    over::check(history, &ledger, &mut report);
    denials::check(history, &ledger, &mut report);
    retry::check(history, &ledger, &mut report);
    report
}
