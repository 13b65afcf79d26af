//! Histories that are right, and histories that are wrong in one place.

mod lenient;
mod simulated;

use simulated::{Bug, SECOND, Simulation, run};
use sluicegate_history::{
    Check, Disturbance, History, Kind, Limit, Record, Span, Verdict, Window, Wrong, check,
};

/// What is found in a history with this bug, for each of several seeds.
fn found(bug: Bug, doubt_us: u64) -> Vec<Vec<Wrong>> {
    found_with(bug, doubt_us, false)
}

/// Likewise, with every leniency.
fn found_with(bug: Bug, doubt_us: u64, lenient: bool) -> Vec<Vec<Wrong>> {
    // A lenient run takes longer, and there is one for each bug.
    let seeds = if lenient { 1..4 } else { 1..10 };
    let each = seeds.map(|seed| {
        let report = check(&run(&Simulation {
            seed,
            bug,
            doubt_us,
            lenient,
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
    for wrong in &each {
        assert!(
            matches!(wrong[..], [Wrong::WronglyDenied | Wrong::DenialsTook]),
            "{wrong:?}"
        );
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
        assert!(
            matches!(wrong[..], [Wrong::TooEarly { by_us: 1..=1_000 }]),
            "{wrong:?}"
        );
    }
    for wrong in found(Bug::RetriesLate, 0) {
        assert!(
            matches!(
                wrong[..],
                [Wrong::TooLate {
                    by_us: 1_000..2_000
                }]
            ),
            "{wrong:?}"
        );
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
    let wrong = found(Bug::Denies, 100).concat();
    assert!(wrong.len() > 6, "{wrong:?}");
    let wrong = found(Bug::Admits, 100).concat();
    assert!(wrong.len() > 6, "{wrong:?}");
    let wrong = found(Bug::RetriesLate, 100).concat();
    assert!(wrong.len() > 4, "{wrong:?}");
}

/// One limit of 2 in a second, and these admissions of one unit.
fn two_a_second(kind: Kind, times: &[Span]) -> History {
    let record = |when: &Span| Record {
        when: *when,
        checks: vec![Check {
            limit: 0,
            subject: 0,
            cost: 1,
        }],
        verdict: Verdict::Admitted,
    };
    History {
        limits: vec![Limit {
            name: "two".to_owned(),
            windows: vec![Window {
                kind,
                quota: 2,
                per_us: SECOND,
            }],
            idle: 0,
        }],
        records: times.iter().map(record).collect(),
        ..History::default()
    }
}

#[test]
fn a_window_is_as_long_as_it_says_to_the_microsecond() {
    let at = |last: u64| {
        [
            Span::exact(SECOND),
            Span::exact(SECOND + 5),
            Span::exact(last),
        ]
    };
    let over = |kind, last| check(&two_a_second(kind, &at(last))).violations.len();
    assert_eq!(over(Kind::Trailing, 2 * SECOND - 1), 1);
    assert_eq!(over(Kind::Trailing, 2 * SECOND), 0);
    // A step holds units longer; more than the quota may not come of it.
    assert_eq!(over(Kind::Steps(SECOND), 2 * SECOND - 1), 1);
    assert_eq!(over(Kind::Aligned, 2 * SECOND - 1), 1);
    assert_eq!(over(Kind::Aligned, 2 * SECOND), 0);
}

#[test]
fn what_may_have_been_in_another_window_is_not_over() {
    let span = |from, to| Span { from, to };
    let certain = [
        Span::exact(SECOND),
        span(SECOND + 10, SECOND + 900_000),
        span(SECOND + 100_000, 2 * SECOND - 1),
    ];
    let over = |times: &[Span]| check(&two_a_second(Kind::Trailing, times)).violations.len();
    assert_eq!(over(&certain), 1);
    let mut doubtful = certain;
    doubtful[2].to = 2 * SECOND;
    assert_eq!(over(&doubtful), 0);
}

#[test]
fn an_outage_allows_the_quota_once_more_in_the_windows_that_it_touches() {
    let four = [0, 1, 2, 3].map(|n| Span::exact(SECOND + n));
    let mut history = two_a_second(Kind::Trailing, &four);
    let outage = |from, to| Disturbance {
        when: Span { from, to },
        once_more: true,
        forgets: false,
        denials: false,
    };
    for (disturbance, over) in [
        (outage(SECOND, SECOND + 1), 0),
        (outage(SECOND + 4, 3 * SECOND), 1),
        (outage(1, 3), 1),
    ] {
        history.disturbances = vec![disturbance];
        assert_eq!(check(&history).violations.len(), over, "{disturbance:?}");
    }
    history.records.push(history.records[0].clone());
    history.disturbances = vec![outage(SECOND, SECOND + 1)];
    let report = check(&history);
    let what = Wrong::Over {
        units: 5,
        allowed: 4,
    };
    assert_eq!(report.violations[0].what, what);
    assert_eq!(report.largest_excess().map(|peak| peak.excess()), Some(3));
}
