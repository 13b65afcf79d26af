//! Runs that are wrong in one place, which the judge must find. The run that they are made of is right: clients of `allow` and
//! `shut` who get what a limiter without a fault gives them, and one of `deny` who asks for little.

use std::time::Duration;

use super::chain::Place;
use super::fault::{Fault, Noticed};
use super::judge::{Run, Times, judge, record, span};
use super::load::{Answer, Seen, UNDER_WAY};
use super::rules::{ALLOW, SHUT, WINDOW_US};

const MS: u64 = 1_000;
const BEGAN_US: u64 = 1_000_000 * MS;
const BROKEN_US: u64 = BEGAN_US + 3_000 * MS;
const MENDED_US: u64 = BROKEN_US + 2_000 * MS;
const TIMES: Times = Times {
    broken_us: BROKEN_US,
    holds_us: BROKEN_US,
    ends_us: MENDED_US,
    mended_us: MENDED_US,
    settled_us: MENDED_US + 100 * MS,
};
const QUOTA: usize = 40;
const DENY: usize = 0;

fn right() -> Vec<Seen> {
    let mut seen = Vec::new();
    for (rule, every_ms) in [(DENY, 200), (ALLOW, 20), (SHUT, 20)] {
        // Admissions, by the time of the decision: a millisecond after the request, and one before its answer.
        let mut admitted: Vec<u64> = Vec::new();
        for sent_us in (BEGAN_US..BEGAN_US + 9_000 * MS).step_by(every_ms * MS as usize) {
            let at = sent_us + MS;
            let oldest = admitted.iter().rev().nth(QUOTA - 1);
            let answer = match oldest.filter(|oldest| *oldest + WINDOW_US > at) {
                Some(oldest) => Answer::Denied(oldest + WINDOW_US - at),
                None => {
                    admitted.push(at);
                    Answer::Admitted
                }
            };
            seen.push(Seen {
                rule,
                client: 1,
                cost: 1,
                sent_us,
                answered_us: at + MS,
                answer,
            });
        }
    }
    seen
}

fn run(seen: Vec<Seen>) -> Run {
    Run {
        records: seen.iter().map(|one| record(one, &TIMES)).collect(),
        seen,
        times: TIMES,
        lost_units: Some(0),
        vm_deaths: 0,
        stalls: Vec::new(),
    }
}

const NOBODY_NOTICES: Fault = Fault::new("nobody notices").unnoticed();

fn failures(fault: Fault, seen: Vec<Seen>) -> Vec<String> {
    judge(&fault, &run(seen)).failures
}

/// A request of this rule without a verdict, in the midst of the fault.
fn without(rule: usize, answer: Answer) -> Seen {
    Seen {
        rule,
        client: 2,
        cost: 1,
        sent_us: BROKEN_US + 500 * MS,
        answered_us: BROKEN_US + 600 * MS,
        answer,
    }
}

fn with(more: impl IntoIterator<Item = Seen>) -> Vec<Seen> {
    right().into_iter().chain(more).collect()
}

#[test]
fn a_right_run_is_right() {
    assert_eq!(failures(NOBODY_NOTICES, right()), [""; 0]);
    let felt = with([
        without(SHUT, Answer::Refused),
        without(ALLOW, Answer::Unmetered),
    ]);
    assert_eq!(failures(Fault::new("felt"), felt), [""; 0]);
}

#[test]
fn only_the_rule_allow_lets_requests_through_and_it_refuses_none() {
    for wrong in [
        without(DENY, Answer::Unmetered),
        without(SHUT, Answer::Unmetered),
        without(ALLOW, Answer::Refused),
    ] {
        let found = failures(Fault::new("felt"), with([wrong; 1_000]));
        let is_found = found.iter().any(|one| one.contains("1000 requests"));
        assert!(is_found, "{found:?}");
    }
}

#[test]
fn nobody_is_without_a_verdict_where_nobody_may_notice() {
    let refused = without(SHUT, Answer::Refused);
    assert_eq!(failures(NOBODY_NOTICES, with([refused])).len(), 1);
    // The time for which a sidecar goes on after SIGTERM.
    let drains = |ms| Fault::new("drains").noticed(Noticed::NotBefore(Duration::from_millis(ms)));
    assert_eq!(failures(drains(700), with([refused])).len(), 1);
    assert_eq!(failures(drains(300), with([refused])), [""; 0]);
    // A machine that stands still is an excuse for those who wait at that moment, and for no others.
    for (before_ms, excused) in [(0, 1), (900, 1), (1_500, 0)] {
        let mut run = run(with([refused]));
        let to = refused.sent_us - before_ms * MS;
        run.stalls = vec![span(to - 150 * MS, to)];
        let outcome = judge(&NOBODY_NOTICES, &run);
        let found = (outcome.excused, outcome.failures.len());
        assert_eq!(found, (excused, 1 - excused));
    }
    // So is one whose verdicts take as long as the store may.
    for (ms, found) in [(90, 1), (110, 0)] {
        let mut slow = without(SHUT, Answer::Denied(WINDOW_US));
        slow.answered_us = slow.sent_us + ms * MS;
        let failures = failures(NOBODY_NOTICES.unchecked(), with([refused, slow]));
        assert_eq!(failures.len(), found, "{failures:?}");
    }
}

#[test]
fn a_fault_that_nobody_felt_was_none() {
    assert_eq!(failures(Fault::new("felt"), right()).len(), 1);
    let mut early = without(SHUT, Answer::Refused);
    (early.sent_us, early.answered_us) = (BEGAN_US, BEGAN_US + MS);
    assert_eq!(failures(Fault::new("felt"), with([early])).len(), 1);
    // One request that the machine delayed shows nothing.
    let refused = without(SHUT, Answer::Refused);
    let mut run = run(with([refused]));
    run.stalls = vec![span(refused.sent_us, refused.answered_us + 50 * MS)];
    assert_eq!(judge(&Fault::new("felt"), &run).failures.len(), 1);
}

#[test]
fn a_store_that_decides_is_not_away() {
    let away = Fault::new("away").away();
    let found = failures(away, with([without(SHUT, Answer::Refused)]));
    assert!(found[0].contains("`shut` admitted"), "{found:?}");
    let mut seen = with([without(SHUT, Answer::Refused)]);
    seen.retain(|one| {
        let during = one.sent_us >= BROKEN_US && one.sent_us < MENDED_US;
        !(one.rule == SHUT && during && one.answer == Answer::Admitted)
    });
    // What the store promised before it went away.
    let found = failures(away.forgets(), seen);
    let still = found.iter().any(|one| one.contains("admitted"));
    assert!(!still, "{found:?}");
}

#[test]
fn no_more_is_lost_than_was_under_way() {
    let lost = |fault: Fault, units| {
        let mut run = run(with([without(SHUT, Answer::Refused)]));
        run.lost_units = Some(units);
        judge(&fault, &run).failures.len()
    };
    let felt = Fault::new("felt");
    assert_eq!(lost(felt, UNDER_WAY), 0);
    assert_eq!(lost(felt, UNDER_WAY + 1), 1);
    assert_eq!(lost(felt.cuts(0), 1), 1);
    assert_eq!(lost(felt.loses_answers(), 10 * UNDER_WAY), 0);
}

#[test]
fn idle_units_of_a_cluster_are_those_of_two_other_clients() {
    // Nobody else uses the key: with six units idle, 34 of 40 have room and 35 have not.
    let on_cluster = NOBODY_NOTICES.at(Place::Cluster);
    for (cost, found) in [(34, true), (35, false)] {
        let mut denied = without(SHUT, Answer::Denied(MS));
        denied.cost = cost;
        let failures = failures(on_cluster, with([denied]));
        assert_eq!(!failures.is_empty(), found, "cost {cost}: {failures:?}");
    }
}

#[test]
fn a_denial_is_cached_for_a_second() {
    // Forty units in 0.4 s; a denial that promises a millisecond was true only before them.
    let at = |sent_us, answer| Seen {
        sent_us,
        answered_us: sent_us + MS,
        ..without(SHUT, answer)
    };
    let used = |ms: u64| at(BROKEN_US + ms * MS, Answer::Admitted);
    let denied = |ms: u64| at(BROKEN_US + ms * MS, Answer::Denied(MS));
    let wrong = |more: &[Seen]| {
        let units = (0..40).map(|unit| used(unit * 10));
        let seen = with(units.chain(more.iter().copied()).chain([denied(500)]));
        let mut run = run(seen);
        // Whatever the first denial was for, it is not judged here.
        run.times.broken_us = 0;
        run.times.settled_us = BROKEN_US;
        !judge(&NOBODY_NOTICES.unchecked(), &run).failures.is_empty()
    };
    assert!(wrong(&[]), "nobody was denied before");
    let before = |by_ms: u64| at(BROKEN_US - by_ms * MS, Answer::Denied(MS));
    assert!(!wrong(&[before(400)]), "0.9 s before");
    assert!(wrong(&[before(600)]), "1.1 s before");
}
