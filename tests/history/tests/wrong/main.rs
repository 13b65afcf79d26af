//! Histories that are right, and histories that are wrong in one place.

mod lenient;
mod settled;
mod simulated;
mod slots;

use simulated::{Bug, SECOND, Simulation, run};
use sluicegate_history::{
    Algorithm, Check, Disturbance, Entry, History, Limit, Said, Span, Wrong, check,
};

/// What is found in a history with this bug, for each of several seeds.
fn found(bug: Bug, doubt_us: u64) -> Vec<Vec<Wrong>> {
    let each = (1..10).map(|seed| {
        let report = check(&run(&Simulation {
            seed,
            bug,
            doubt_us,
        }));
        assert!(report.denials > 50, "{} denials", report.denials);
        let wrong = report.violations.iter().map(|one| one.what);
        wrong.collect()
    });
    each.collect()
}

#[test]
fn a_right_history_is_right_whether_its_times_are_known_or_not() {
    for doubt_us in [0, 1, 5_000, 400_000, 3 * SECOND] {
        for wrong in found(Bug::None, doubt_us) {
            assert_eq!(wrong, [], "times in doubt by {doubt_us}");
        }
    }
}

#[test]
fn one_admission_without_room_is_over() {
    for wrong in found(Bug::Admits, 0) {
        assert!(!wrong.is_empty());
        let over = |one: &Wrong| matches!(one, Wrong::Over { units, allowed } if units > allowed);
        assert!(wrong.iter().all(over), "{wrong:?}");
    }
}

#[test]
fn one_denial_without_need_is_wrong() {
    let each = found(Bug::Denies, 0);
    // Where other denials could have filled a window, they are suspected.
    let suspected = |one: &Wrong| matches!(one, Wrong::WronglyDenied | Wrong::DenialsTook);
    for wrong in &each {
        assert!(wrong.len() == 1 && suspected(&wrong[0]), "{wrong:?}");
    }
    assert!(each.concat().contains(&Wrong::WronglyDenied));
}

#[test]
fn one_denial_that_takes_is_not_all_or_nothing() {
    for wrong in found(Bug::DenialTakes, 0) {
        let takes = |one: &Wrong| {
            let left = matches!(one, Wrong::LessLeft { .. } | Wrong::TooLate { .. });
            left || *one == Wrong::DenialsTook
        };
        assert!(!wrong.is_empty() && wrong.iter().all(takes), "{wrong:?}");
    }
    let all: Vec<_> = found(Bug::DenialTakes, 0).concat();
    assert!(all.contains(&Wrong::DenialsTook), "{all:?}");
}

#[test]
fn one_retry_after_that_is_a_unit_too_short_or_too_long_is_untrue() {
    for wrong in found(Bug::RetriesEarly, 0) {
        let is_early = matches!(wrong[..], [Wrong::TooEarly { by_us: 1..=1_000 }]);
        assert!(is_early, "{wrong:?}");
    }
    for wrong in found(Bug::RetriesLate, 0) {
        let is_late = matches!(
            wrong[..],
            [Wrong::TooLate {
                by_us: 1_000..2_000
            }]
        );
        assert!(is_late, "{wrong:?}");
    }
}

#[test]
fn one_call_that_is_made_twice_leaves_too_little() {
    for wrong in found(Bug::TakesTwice, 0) {
        let little = |one: &Wrong| !matches!(one, Wrong::Over { .. } | Wrong::MoreLeft { .. });
        assert!(!wrong.is_empty() && wrong.iter().all(little), "{wrong:?}");
    }
}

#[test]
fn one_admission_that_is_forgotten_leaves_too_much() {
    for wrong in found(Bug::Forgets, 0) {
        let much = |one: &Wrong| {
            let early = matches!(one, Wrong::TooEarly { .. });
            early || matches!(one, Wrong::MoreLeft { .. } | Wrong::Over { .. })
        };
        assert!(!wrong.is_empty() && wrong.iter().all(much), "{wrong:?}");
    }
}

/// A fault is found in doubt too, if it is larger than the doubt.
#[test]
fn with_times_in_doubt_what_is_certain_is_found() {
    for (bug, more_than) in [(Bug::Denies, 6), (Bug::Admits, 6), (Bug::RetriesLate, 4)] {
        let wrong = found(bug, 100).concat();
        assert!(wrong.len() > more_than, "{wrong:?}");
    }
}

/// Denied, and not told until when.
const DENIED: Said = Said::Denied { retry_ms: None };

/// Denied for so many microseconds.
const fn denied(retry_us: u64) -> Said {
    let retry_ms = Some(retry_us / 1_000);
    Said::Denied { retry_ms }
}

/// A decision over the only limit for a key.
fn of(key: usize, when: Span, cost: u64, said: Said) -> Entry {
    Entry::asked(when, vec![Check::new(0, key, cost)], said)
}

fn one(when: Span, cost: u64, said: Said) -> Entry {
    of(0, when, cost, said)
}

/// A look at it.
fn looked(at: u64, left: u64) -> Entry {
    Entry::looked(Span::exact(at), vec![Check::new(0, 0, 0)], left)
}

/// One limit of 2 in a second, and these admissions of one unit.
fn two_a_second(kind: Algorithm, times: &[Span]) -> History {
    let admitted = |when: &Span| one(*when, 1, Said::Admitted);
    let limits = vec![Limit::new(kind, 2, 1_000)];
    History::new(limits, times.iter().map(admitted).collect())
}

fn violations(history: &History) -> Vec<Wrong> {
    let found = check(history).violations;
    found.into_iter().map(|one| one.what).collect()
}

/// What is promised less from one time to another; denials are checked.
const fn disturbance(from: u64, to: u64) -> Disturbance {
    Disturbance {
        when: Span { from, to },
        once_more: true,
        forgets: false,
        denials: false,
    }
}

#[test]
fn a_window_is_as_long_as_it_says_to_the_microsecond() {
    let over = |kind, last| {
        let times = [SECOND, SECOND + 5, last].map(Span::exact);
        violations(&two_a_second(kind, &times)).len()
    };
    assert_eq!(over(Algorithm::Log, 2 * SECOND - 1), 1);
    assert_eq!(over(Algorithm::Log, 2 * SECOND), 0);
    // A step holds units longer; more than the quota may not come of it.
    assert_eq!(over(Algorithm::Sliding(1_000), 2 * SECOND - 1), 1);
    assert_eq!(over(Algorithm::Fixed, 2 * SECOND - 1), 1);
    assert_eq!(over(Algorithm::Fixed, 2 * SECOND), 0);
}

#[test]
fn what_may_have_been_in_another_window_is_not_over() {
    let span = |from, to| Span { from, to };
    let certain = [
        Span::exact(SECOND),
        span(SECOND + 10, SECOND + 900_000),
        span(SECOND + 100_000, 2 * SECOND - 1),
    ];
    let over = |times: &[Span]| violations(&two_a_second(Algorithm::Log, times)).len();
    assert_eq!(over(&certain), 1);
    let mut doubtful = certain;
    doubtful[2].to = 2 * SECOND;
    assert_eq!(over(&doubtful), 0);
}

#[test]
fn an_outage_allows_the_quota_once_more_in_the_windows_that_it_touches() {
    let four = [0, 1, 2, 3].map(|n| Span::exact(SECOND + n));
    let mut history = two_a_second(Algorithm::Log, &four);
    for (from, to, over) in [
        (SECOND + 4, 3 * SECOND, 1),
        (1, 3, 1),
        (SECOND, SECOND + 1, 0),
    ] {
        history.disturbances = vec![disturbance(from, to)];
        assert_eq!(violations(&history).len(), over, "{from} {to}");
    }
    history.log.push(history.log[0].clone());
    let report = check(&history);
    let what = Wrong::Over {
        units: 5,
        allowed: 4,
    };
    assert_eq!(report.violations[0].what, what);
    assert_eq!(report.largest_excess().map(|peak| peak.excess()), Some(3));
}
