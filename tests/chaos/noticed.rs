//! Who was without a verdict, whether the fault explains it, and whether there was a fault at all.

use std::time::Duration;

use sluicegate_history::Span;

use super::fault::{Fault, Noticed};
use super::judge::Run;
use super::load::{Answer, Seen};
use super::rules::{ALLOW, RULES, SHUT};
use super::stalls::STOOD_STILL;

/// How long requests may lack verdicts after the machine stood still: until a store that was late is in use again.
const RECOVERS_WITHIN_US: u64 = 1_000_000;

/// How many requests without a verdict are excused because the machine stood still, and what is wrong.
pub fn judge(fault: &Fault, run: &Run) -> (usize, Vec<String>) {
    let Run { seen, times, .. } = run;
    let mut failures = by_rule(seen);
    let without = seen.iter().filter(|one| one.answer.lacks_verdict());
    let without: Vec<_> = without.collect();
    let until = match fault.noticed {
        Noticed::Some | Noticed::Perhaps => 0,
        Noticed::Never => u64::MAX,
        Noticed::NotBefore(time) => times.broken_us + time.as_micros() as u64,
    };
    let early = without.iter().filter(|one| one.answered_us < until);
    let (excused, wrong): (Vec<&Seen>, Vec<_>) = early.partition(|one| stood_still(run, one));
    let (excused, wrong) = (excused.len(), wrong.len());
    if wrong > 0 {
        failures.push(format!("{wrong} requests without a verdict for no reason"));
    }
    let felt = without.iter().filter(|one| {
        let during = one.answered_us >= times.broken_us && one.sent_us <= times.settled_us;
        during && !is_late_by_the_machine(run, one)
    });
    if fault.noticed == Noticed::Some && felt.count() == 0 {
        failures.push("nobody felt it".to_owned());
    }
    if fault.away {
        let during = |one: &&Seen| {
            one.rule == SHUT && one.sent_us >= times.holds_us && one.answered_us <= times.ends_us
        };
        let during: Vec<_> = seen.iter().filter(during).collect();
        let count = |answer| during.iter().filter(|one| one.answer == answer).count();
        let (admitted, refused) = (count(Answer::Admitted), count(Answer::Refused));
        if admitted > 0 || refused == 0 {
            let name = RULES[SHUT];
            failures.push(format!(
                "no store was to decide: `{name}` admitted {admitted} and refused {refused}"
            ));
        }
    }
    (excused, failures)
}

/// Each rule's `when_unavailable` decided, and no other.
pub fn by_rule(seen: &[Seen]) -> Vec<String> {
    let mut failures = Vec::new();
    for (rule, name) in RULES.iter().enumerate() {
        let is_allow = rule == ALLOW;
        let wrong = [Answer::Unmetered, Answer::Refused][usize::from(is_allow)];
        let of = |one: &&Seen| one.rule == rule && one.answer == wrong;
        let count = seen.iter().filter(of).count();
        if count > 0 {
            failures.push(format!("`{name}`: {count} requests {wrong:?}"));
        }
    }
    failures
}

/// Whether the machine stood still while a request waited, or so shortly before that the store still counted as down; or
/// was so slow that somebody waited as long for a verdict, and got it: others keep its processors busy.
fn stood_still(run: &Run, one: &Seen) -> bool {
    let begins = one.sent_us.saturating_sub(RECOVERS_WITHIN_US);
    let excuses = |from: u64, to: u64| {
        let long = Duration::from_micros(to - from) >= STOOD_STILL;
        long && from <= one.answered_us && to >= begins
    };
    let mut verdicts = run.seen.iter().filter(|other| other.answer.is_verdict());
    let mut stalls = run.stalls.iter();
    stalls.any(|stall| excuses(stall.from, stall.to))
        || verdicts.any(|other| excuses(other.sent_us, other.answered_us))
}

/// Whether it stood still for most of the time that a request waited: then that says nothing about the fault.
fn is_late_by_the_machine(run: &Run, one: &Seen) -> bool {
    let overlap = |stall: &Span| {
        let to = stall.to.min(one.answered_us);
        to.saturating_sub(stall.from.max(one.sent_us))
    };
    let stalled: u64 = run.stalls.iter().map(overlap).max().unwrap_or(0);
    Duration::from_micros(stalled) >= STOOD_STILL && 2 * stalled >= one.answered_us - one.sent_us
}
