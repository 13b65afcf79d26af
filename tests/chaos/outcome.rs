//! What came of a fault, in figures.

use std::time::Duration;

use super::load::{Answer, Seen};

/// Answers by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub admitted: u64,
    pub denied: u64,
    pub unmetered: u64,
    pub refused: u64,
    pub other: u64,
    pub lost: u64,
    /// Without an answer, although others were answered meanwhile.
    pub hung: u64,
    /// Without an answer while nobody was answered: the machine stood still.
    pub stalled: u64,
}

/// So many answers while a request waits show that the machine is not standing still.
const OTHERS: usize = 100;

impl Counts {
    pub fn of(seen: &[Seen]) -> Self {
        let mut counts = Self::default();
        for one in seen {
            *match one.answer {
                Answer::Admitted => &mut counts.admitted,
                Answer::Denied(_) => &mut counts.denied,
                Answer::Unmetered => &mut counts.unmetered,
                Answer::Refused => &mut counts.refused,
                Answer::Other(_) => &mut counts.other,
                Answer::Lost => &mut counts.lost,
                Answer::Hung if others_are_answered(one, seen) => &mut counts.hung,
                Answer::Hung => &mut counts.stalled,
            } += 1;
        }
        counts
    }
}

/// Whether Envoy answered others while a request waited in vain.
fn others_are_answered(waits: &Seen, seen: &[Seen]) -> bool {
    let meanwhile = |one: &&Seen| {
        let answered = one.answer != Answer::Hung && one.answer != Answer::Lost;
        answered && one.answered_us > waits.sent_us && one.answered_us < waits.answered_us
    };
    seen.iter().filter(meanwhile).count() >= OTHERS
}

/// The figures of one fault.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub counts: Counts,
    /// The slowest answer.
    pub slowest: Duration,
    /// Requests without a verdict that nobody should have noticed, but the machine stood still.
    pub excused: usize,
    /// VMs of the filter that died.
    pub vm_deaths: u64,
    /// The fullest window, if it held more than its quota: units, quota.
    pub fullest: Option<(u64, u64)>,
    /// Units that the store counts without an admission; `None` if it has forgotten some.
    pub lost_units: Option<u64>,
    /// From the fault's end to the first verdict.
    pub back_after: Duration,
    /// What broke a promise.
    pub failures: Vec<String>,
}
