//! Slots that streams hold.

use super::simulated::SECOND as S;
use super::{DENIED, violations};
use sluicegate_history::{
    Algorithm, Check, Entry, Held, History, Limit, Link, Said, Sign, Span, What, Wrong,
};

const ADMITTED: Said = Said::Admitted;

/// The first limit has two slots for 3 s, the second is a rate of one in 10 s.
fn history(log: Vec<Entry>) -> History {
    let slots = Limit::new(Algorithm::Slots(60_000), 2, 3_000);
    History::new(vec![slots, Limit::new(Algorithm::Log, 1, 10_000)], log)
}

fn wrong(log: Vec<Entry>) -> Vec<Wrong> {
    violations(&history(log))
}

fn asks(at: u64, cost: u64, said: Said) -> Entry {
    Entry::asked(Span::exact(at), vec![Check::new(0, 0, cost)], said)
}

fn happens(at: u64, what: What) -> Entry {
    Entry {
        from: at,
        to: at,
        sidecar: 0,
        what,
    }
}

fn signs(at: u64, entry: usize, sign: Sign) -> Entry {
    let (limit, key) = (0, 0);
    let held = Held {
        entry,
        limit,
        key,
        sign,
    };
    happens(at, What::Held(held))
}

const OVER: Wrong = Wrong::Over {
    units: 3,
    allowed: 2,
};

#[test]
fn more_streams_at_once_than_slots_are_over() {
    let both = [asks(S, 1, ADMITTED), asks(S + 1, 1, ADMITTED)];
    let third = |more: &[Entry], at| wrong([&both, more, &[asks(at, 1, ADMITTED)]].concat());
    assert_eq!(third(&[], 2 * S), [OVER]);
    for sign in [Sign::Freed(1), Sign::FreeLost] {
        assert_eq!(third(&[signs(2 * S, 0, sign)], 3 * S), []);
    }
    // Without a sign they last for 3 s; with one for longer.
    assert_eq!(third(&[], 4 * S), []);
    let renewed = [
        signs(3 * S, 0, Sign::Renewed),
        signs(3 * S, 1, Sign::Renewed),
    ];
    assert_eq!(third(&renewed, 5 * S), [OVER]);
    assert_eq!(third(&renewed[..1], 5 * S), []);
    let lost = signs(3 * S, 1, Sign::RenewalLost);
    assert_eq!(third(&[renewed[0].clone(), lost], 5 * S), []);
    // Of several at once each takes its own.
    let two = wrong(vec![asks(S, 2, ADMITTED), asks(2 * S, 1, ADMITTED)]);
    assert_eq!(two, [OVER]);
}

#[test]
fn what_the_store_lost_counts_again_from_the_next_sign_on() {
    let takes = [asks(S, 1, ADMITTED), asks(S + 1, 1, ADMITTED)];
    let lost = [happens(S + 2, What::Lost)];
    let again = [asks(2 * S, 1, ADMITTED), asks(2 * S + 1, 1, ADMITTED)];
    let log = [&takes[..], &lost, &again].concat();
    assert_eq!(wrong(log.clone()), []);
    let renewed = [signs(2 * S + 2, 0, Sign::Renewed)];
    let late = [asks(4 * S, 1, ADMITTED)];
    let found = wrong([&log[..], &renewed, &late].concat());
    let (units, allowed) = (4, 2);
    assert_eq!(found, [Wrong::Over { units, allowed }]);
    // A step of the clock ends those that it passes.
    for (by_ms, expected) in [(1_000, vec![OVER]), (3_000, vec![])] {
        let step = [happens(S + 2, What::Clock(by_ms))];
        assert_eq!(wrong([&takes[..], &step, &again[..1]].concat()), expected);
    }
}

#[test]
fn a_share_counts_the_streams_that_its_sidecar_knows() {
    let before = [asks(S, 1, ADMITTED), asks(S, 1, ADMITTED)];
    let cut = [happens(2 * S, What::Link(Link::Cut))];
    let share = [asks(5 * S, 1, ADMITTED), asks(5 * S + 1, 1, ADMITTED)];
    let good = [happens(9 * S, What::Link(Link::Good))];
    let log = |more: &[Entry]| wrong([&before[..], &cut, &share, more, &good].concat());
    assert_eq!(log(&[]), []);
    assert_eq!(log(&[asks(6 * S, 1, ADMITTED)]), [OVER]);
    // Where half of all keys are refused, the store may have decided on this one until just now.
    let half = [happens(2 * S, What::Link(Link::RefusesHalf))];
    let more = [asks(6 * S, 1, ADMITTED)];
    assert_eq!(
        wrong([&before[..], &half, &share, &more, &good].concat()),
        []
    );
    // Those from before count when they are renewed.
    let (units, allowed) = (4, 2);
    for sign in [Sign::Renewed, Sign::RenewalLost] {
        let renewed = [signs(4 * S + 1, 0, sign), asks(6 * S, 1, ADMITTED)];
        assert_eq!(log(&renewed), [Wrong::Over { units, allowed }]);
    }
}

#[test]
fn nobody_is_denied_while_a_slot_is_free() {
    let takes = [asks(S, 1, ADMITTED), asks(S + 1, 1, ADMITTED)];
    let denied = |more: &[Entry], at| wrong([&takes, more, &[asks(at, 1, DENIED)]].concat());
    assert_eq!(denied(&[], 2 * S), []);
    let freed = |sign| [signs(2 * S, 0, sign)];
    assert_eq!(
        denied(&freed(Sign::Freed(1)), 2 * S + S / 2),
        [Wrong::WronglyDenied]
    );
    assert_eq!(denied(&freed(Sign::FreeLost), 2 * S + S / 2), []);
    assert_eq!(
        denied(&freed(Sign::Freed(1)), 2 * S + S / 4),
        [],
        "it is cached"
    );
    // Nobody has renewed them for 3 s.
    assert_eq!(denied(&[], 4 * S + S / 2), [Wrong::WronglyDenied]);
    let renewed = [
        signs(3 * S, 0, Sign::RenewalLost),
        signs(3 * S, 1, Sign::Renewed),
    ];
    assert_eq!(denied(&renewed, 4 * S + S / 2), []);
    // By a clock that steps back they last for longer.
    let back = [happens(2 * S, What::Clock(-2_000))];
    assert_eq!(denied(&back, 4 * S + S / 2), []);
    // What nobody was told of is freed soon.
    for (at, expected) in [(2 * S, vec![]), (4 * S, vec![Wrong::WronglyDenied])] {
        let log = vec![asks(S, 2, Said::Unknown), asks(at, 1, DENIED)];
        assert_eq!(wrong(log), expected, "{at}");
    }
}

#[test]
fn who_is_denied_by_a_rate_takes_no_slot() {
    let check = |limit| Check::new(limit, 0, 1);
    let both = |at, said| Entry::asked(Span::exact(at), vec![check(0), check(1)], said);
    let rate = Entry::asked(Span::exact(S), vec![check(1)], ADMITTED);
    let log = |last| {
        wrong(vec![
            rate.clone(),
            both(2 * S, DENIED),
            both(2 * S + 1, DENIED),
            last,
        ])
    };
    assert_eq!(log(asks(3 * S, 2, DENIED)), [Wrong::WronglyDenied]);
    assert_eq!(log(asks(3 * S, 2, ADMITTED)), []);
    // And who is denied by slots has taken nothing of the rate.
    let rate = |said| Entry::asked(Span::exact(3 * S), vec![check(1)], said);
    let full = [asks(S, 2, ADMITTED), both(2 * S, DENIED)];
    let denied = wrong([&full[..], &[rate(DENIED)]].concat());
    assert_eq!(denied, [Wrong::DenialsTook]);
    assert_eq!(wrong([&full[..], &[rate(ADMITTED)]].concat()), []);
}

#[test]
fn a_stream_is_renewed_while_it_lives_and_freed_once_when_it_has_ended() {
    let lives = |signs_at: &[u64], more: &[Entry]| {
        let renewals = signs_at.iter().map(|at| signs(*at, 0, Sign::Renewed));
        let log: Vec<_> = [asks(S, 1, ADMITTED)].into_iter().chain(renewals).collect();
        wrong([&log[..], &[signs(7 * S, 0, Sign::Ended)], more].concat())
    };
    let freed = |at, units| signs(at, 0, Sign::Freed(units));
    let each = [2 * S, 4 * S, 6 * S];
    assert_eq!(lives(&each, &[freed(7 * S, 1)]), []);
    assert_eq!(lives(&each[1..], &[freed(7 * S, 1)]), [Wrong::NotRenewed]);
    assert_eq!(lives(&each, &[]), [Wrong::NotFreed]);
    assert_eq!(lives(&each, &[freed(10 * S, 1)]), [Wrong::NotFreed]);
    let twice = [freed(7 * S, 1), freed(8 * S, 1)];
    assert_eq!(lives(&each, &twice), [Wrong::FreedTwice]);
    assert_eq!(lives(&each, &[freed(7 * S, 1), freed(8 * S, 0)]), []);
    // Callouts that fail excuse it, and a VM that has ended.
    for what in [What::Envoy, What::VmEnded] {
        assert_eq!(lives(&each, &[happens(7 * S, what)]), []);
    }
}

#[test]
fn a_look_finds_those_in_use() {
    let look = |at, left| {
        let check = vec![Check::new(0, 0, 0)];
        wrong(vec![
            asks(S, 1, ADMITTED),
            Entry::looked(Span::exact(at), check, left),
        ])
    };
    assert_eq!(look(2 * S, 1), []);
    let (taken, at_least) = (0, 1);
    assert_eq!(look(2 * S, 2), [Wrong::MoreLeft { taken, at_least }]);
    let (taken, at_most) = (2, 1);
    assert_eq!(look(2 * S, 0), [Wrong::LessLeft { taken, at_most }]);
    assert_eq!(look(5 * S, 2), []);
}
