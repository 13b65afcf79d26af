//! Judges a history of decisions, as clients saw them, by the promises alone: it knows what was asked, answered and done, and
//! nothing of the code. `docs/promises.md`; published allowances: `docs/reliability.md`, `docs/leases.md`, `docs/upgrades.md`.
//!
//! | file | for |
//! |---|---|
//! | `record.rs` | what a run records |
//! | `bounds.rs` | what may have been in force when: policies, overrides, outages, clocks |
//! | `uses.rs` | what was taken from one bucket, summed up by time |
//! | `settled.rs` | what was reserved, and what a settle is told |
//! | `slots.rs` | the slots of streams that live: never over, never lost, and free when nobody has them |
//! | `over.rs` | the first promise: never over |
//! | `denials.rs` | the second and third: never wrongly denied, all or nothing |
//! | `looks.rs` | the same, by what a look finds |
//! | `retry.rs` | the fourth: a true Retry-After |
//! | `origin.rs` | when a denial that may come from a cache was first made |
//! | `told.rs` | a block blocks, whoever comes back in time is admitted, and every request has a verdict |
//! | `report.rs` | what is found |
//!
//! A client knows when it asked and when it was answered, not when the decision was made in between. So every statement
//! is about all instants that are possible: what is reported as wrong is wrong for certain, whichever of them it was. With
//! exact times (`Span::exact`), as in tests of the engine, nothing is left to doubt.
//!
//! This crate depends on nothing: it shares no arithmetic with the engine, the script or their model.

mod bounds;
mod denials;
mod looks;
mod origin;
mod over;
mod record;
mod report;
mod retry;
mod settled;
mod slots;
mod told;
mod uses;

pub use record::{
    Algorithm, By, Check, Disturbance, Entry, Grant, Held, History, Limit, Link, Policy, Request,
    Said, Settled, Sign, Span, Told, What, Window,
};
pub use report::{Peak, Report, Violation, Wrong};

/// Judges the whole history.
#[must_use]
pub fn check(history: &History) -> Report {
    let judge = bounds::Judge::new(history);
    let mut report = Report::default();
    judge.unhealed(&mut report);
    judge.unmetered(&mut report);
    judge.blocked(&mut report);
    judge.again(&mut report);
    judge.looks(&mut report);
    judge.settles(&mut report);
    judge.slots(&mut report);
    for subject in judge.subjects.values() {
        for counted in &subject.counted {
            judge.over(counted, subject, &mut report);
        }
    }
    judge.denials(&mut report);
    judge.retries(&mut report);
    report
}
