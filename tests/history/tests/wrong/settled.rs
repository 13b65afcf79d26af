//! What is reserved and settled later.

use super::simulated::SECOND;
use super::{denied, one, violations};
use sluicegate_history::{
    Algorithm, Check, Entry, History, Limit, Said, Settled, Span, Told, What, Wrong,
};

/// A step of the settlement of a request's only check.
pub fn settled(entry: usize, used: u64, told: Told) -> What {
    What::Settled(Settled {
        entry,
        limit: 0,
        key: 0,
        used: Some(used),
        told,
    })
}

fn settles(at: u64, entry: usize, used: u64, told: Told) -> Entry {
    Entry {
        from: at,
        to: at,
        sidecar: 0,
        what: settled(entry, used, told),
    }
}

/// Of the only limit, at most this part of its quota.
fn part(at: u64, cost: u64, most: u64, said: Said) -> Entry {
    let check = Check::new(0, 0, cost).reserves(most);
    Entry::asked(Span::exact(at), vec![check], said)
}

fn reserves(at: u64, cost: u64) -> Entry {
    part(at, cost, 100, Said::Admitted)
}

/// What is wrong where a limit of 4 in 10 seconds has this history.
fn of_four(algorithm: Algorithm, log: Vec<Entry>) -> Vec<Wrong> {
    violations(&History::new(vec![Limit::new(algorithm, 4, 10_000)], log))
}

fn wrong(log: Vec<Entry>) -> Vec<Wrong> {
    of_four(Algorithm::Log, log)
}

const S: u64 = SECOND;

#[test]
fn what_is_not_used_makes_room_and_is_returned_once() {
    let log = |returned: u64, then: u64| {
        vec![
            reserves(S, 4),
            settles(2 * S, 0, 1, Told::Returned(returned)),
            reserves(3 * S, then),
        ]
    };
    assert_eq!(wrong(log(3, 3)), []);
    let over = |units| Wrong::Over { units, allowed: 4 };
    assert_eq!(wrong(log(3, 4)), [over(5)]);
    for units in [2, 4] {
        let (least, most) = (3, 3);
        let found = wrong(log(units, 1));
        assert_eq!(found, [Wrong::Settled { units, least, most }]);
    }
    // What has left the window comes back no more; what is told twice is wrong.
    let settle = |at| settles(at, 0, 1, Told::Returned(3));
    assert_eq!(wrong(vec![reserves(S, 4), settle(2 * S)]), []);
    let late = settles(11 * S, 0, 1, Told::Returned(0));
    assert_eq!(wrong(vec![reserves(S, 4), late]), []);
    let twice = vec![reserves(S, 4), settle(2 * S), settle(3 * S)];
    let (units, least, most) = (3, 0, 0);
    assert_eq!(wrong(twice), [Wrong::Settled { units, least, most }]);
}

#[test]
fn what_the_reserve_covers_is_never_over() {
    let log = vec![reserves(S, 2), reserves(S + 1, 2), reserves(S + 2, 1)];
    let (units, allowed) = (5, 4);
    assert_eq!(wrong(log), [Wrong::Over { units, allowed }]);
}

#[test]
fn a_window_is_over_by_what_those_under_way_at_one_moment_used_beyond_their_reserves() {
    for algorithm in [Algorithm::Log, Algorithm::Fixed, Algorithm::Token(4)] {
        let mut log = vec![
            reserves(S, 2),
            reserves(S + 1, 2),
            settles(2 * S, 0, 5, Told::Charged(3)),
            settles(3 * S, 1, 5, Told::Charged(3)),
        ];
        assert_eq!(of_four(algorithm, log.clone()), []);
        // Once it is charged, nothing is admitted before it has drained: also not who reserves nothing.
        log.push(reserves(4 * S, 0));
        let found = of_four(algorithm, log);
        let is_over = |wrong: &Wrong| matches!(wrong, Wrong::Over { units, .. } if *units > 4);
        assert!(found.len() == 1 && is_over(&found[0]), "{found:?}");
    }
    // A window that the clock runs through again does not know of it.
    for (by_ms, wrong) in [(-25_000, 0), (5, 1)] {
        let mut step = settles(4 * S, 0, 0, Told::Ended);
        step.what = What::Clock(by_ms);
        let charged = settles(32 * S, 0, 12, Told::Charged(10));
        let mut log = vec![reserves(31 * S, 2), charged, step, reserves(35 * S, 2)];
        (log[2].from, log[2].to) = (33 * S, 33 * S);
        if by_ms < 0 {
            log[3] = reserves(58 * S, 2);
        }
        assert_eq!(of_four(Algorithm::Fixed, log).len(), wrong, "{by_ms}");
    }
    // A settle whose answer was lost may have charged, or not.
    let lost = |told| {
        vec![
            reserves(S, 2),
            settles(2 * S, 0, 5, told),
            reserves(3 * S, 2),
        ]
    };
    assert_eq!(wrong(lost(Told::Nothing)), []);
    assert_eq!(wrong(lost(Told::Charged(3))).len(), 1);
}

#[test]
fn who_reserves_nothing_may_have_been_admitted_before_who_takes_the_rest() {
    for (from, wrong) in [(S + 5, 0), (S + 20, 1)] {
        let mut nothing = reserves(S + 30, 0);
        nothing.from = from;
        let mut rest = reserves(S + 10, 4);
        rest.from = S;
        assert_eq!(self::wrong(vec![rest, nothing]).len(), wrong, "{from}");
    }
}

#[test]
fn a_debt_that_is_not_charged_is_wrong() {
    for told in [Told::Charged(2), Told::Charged(4), Told::Returned(0)] {
        let units = match told {
            Told::Charged(units) => units,
            _ => 0,
        };
        let (least, most) = (3, 3);
        let found = wrong(vec![reserves(S, 2), settles(2 * S, 0, 5, told)]);
        assert_eq!(found, [Wrong::Settled { units, least, most }]);
    }
}

#[test]
fn a_denial_knows_half_a_second_later_what_came_back() {
    for (later, denials) in [(400_000, 0), (600_000, 1)] {
        let log = vec![
            reserves(S, 4),
            settles(2 * S, 0, 0, Told::Returned(4)),
            part(2 * S + later, 1, 100, super::DENIED),
        ];
        assert_eq!(wrong(log).len(), denials, "{later}");
    }
    // Where programs alone settle, a denial is cached for as long as elsewhere.
    let asks = |at, cost, said| Entry::asked(Span::exact(at), vec![Check::new(0, 0, cost)], said);
    for (later, denials) in [(1_000_000, 0), (1_200_000, 1)] {
        let log = vec![
            asks(S, 4, Said::Admitted),
            settles(2 * S, 0, 0, Told::Returned(4)),
            asks(2 * S + later, 1, super::DENIED),
        ];
        let history = History {
            cached_us: 1_100_000,
            ..History::new(vec![Limit::new(Algorithm::Log, 4, 10_000)], log)
        };
        assert_eq!(violations(&history).len(), denials, "{later}");
    }
    // Who reserves nothing is denied if nothing is left, and only then.
    for (taken, denials) in [(4, 0), (3, 1)] {
        let log = vec![reserves(S, taken), part(2 * S, 0, 100, super::DENIED)];
        assert_eq!(wrong(log).len(), denials, "{taken}");
    }
}

#[test]
fn a_retry_after_is_true_with_debt() {
    // 2 leave the window at 11 s, and 5 at 12 s.
    for (told, wrong) in [(8 * S, Some(1)), (9 * S, None), (10 * S, Some(2))] {
        let log = vec![
            reserves(S, 2),
            settles(2 * S, 0, 7, Told::Charged(5)),
            one(Span::exact(3 * S), 1, denied(told)),
        ];
        let found = self::wrong(log);
        let is_it = match found[..] {
            [] => wrong.is_none(),
            [Wrong::TooEarly { .. }] => wrong == Some(1),
            [Wrong::TooLate { .. }] => wrong == Some(2),
            _ => false,
        };
        assert!(is_it, "{told}: {found:?}");
    }
}

#[test]
fn at_most_a_part_of_the_quota_is_reserved() {
    let half = |at| part(at, 1_000, 50, Said::Admitted);
    assert_eq!(wrong(vec![half(S), half(S + 1)]), []);
    assert_eq!(wrong(vec![half(S), half(S + 1), half(S + 2)]).len(), 1);
    // By the smaller of two policies it is less.
    let mut history = History::new(
        vec![Limit::new(Algorithm::Log, 4, 10_000)],
        vec![half(S), half(S + 1), half(S + 2)],
    );
    let smaller = Limit::new(Algorithm::Log, 2, 10_000);
    history.policies.push(vec![Some(smaller)]);
    history.log.insert(
        0,
        Entry {
            from: S - 1,
            to: S - 1,
            sidecar: 0,
            what: What::Policy(1),
        },
    );
    assert_eq!(violations(&history), []);
}

#[test]
fn what_a_stream_tells_is_settled_unless_its_vm_has_ended() {
    let ended = vec![reserves(S, 2), settles(2 * S, 0, 1, Told::Ended)];
    assert_eq!(wrong(ended.clone()), [Wrong::Unsettled]);
    let mut over = History::new(vec![Limit::new(Algorithm::Log, 4, 10_000)], ended.clone());
    over.healed = 3 * S;
    assert_eq!(violations(&over), [], "the run ends soon after it");
    let with = |more: Entry| wrong([&ended[..], &[more]].concat());
    assert_eq!(with(settles(3 * S, 0, 1, Told::Returned(1))), []);
    // In a calm world no receipt is unknown, unless an answer before was lost.
    let unknown = settles(4 * S, 0, 1, Told::Unknown);
    assert_eq!(with(unknown.clone()), [Wrong::Unsettled]);
    let lost = settles(3 * S, 0, 1, Told::Nothing);
    assert_eq!(wrong([&ended[..], &[lost, unknown]].concat()), []);
    let vm = Entry {
        what: What::VmEnded,
        ..settles(3 * S, 0, 0, Told::Ended)
    };
    assert_eq!(with(vm), []);
    // What is kept does not come back.
    let mut kept = settles(3 * S, 0, 0, Told::Returned(1));
    if let What::Settled(step) = &mut kept.what {
        step.used = None;
    }
    let (units, least, most) = (1, 0, 0);
    let found = wrong(vec![reserves(S, 2), kept]);
    assert_eq!(found, [Wrong::Settled { units, least, most }]);
}
