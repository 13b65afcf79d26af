//! What leniencies allow, and what they must not hide.

use super::settled::settled;
use super::simulated::SECOND;
use super::{DENIED, denied, disturbance, looked, of, one, two_a_second, violations};
use sluicegate_history::{
    Algorithm, By, Entry, History, Limit, Link, Said, Span, Told, What, Window, Wrong,
};

const MS: u64 = 1_000;

/// Two of two units are taken at 1 s.
fn full() -> History {
    let mut history = two_a_second(Algorithm::Log, &[Span::exact(SECOND); 2]);
    history.retry_late_us = MS;
    history
}

fn windows(history: &mut History) -> &mut Vec<Window> {
    let limit = history.policies[0][0].as_mut();
    &mut limit.expect("it has one").windows
}

#[test]
fn only_a_disturbance_that_forgets_excuses_what_is_missing() {
    let mut history = full();
    history.log.push(looked(SECOND + 20, 2));
    history.disturbances = vec![disturbance(SECOND + 5, SECOND + 10)];
    let missing = Wrong::MoreLeft {
        taken: 0,
        at_least: 2,
    };
    assert_eq!(violations(&history), [missing]);
    history.disturbances[0].forgets = true;
    assert_eq!(violations(&history), []);
}

#[test]
fn idle_units_excuse_a_denial_and_one_more_unit_of_room_does_not() {
    // One of two units is free.
    let mut history = two_a_second(Algorithm::Log, &[Span::exact(SECOND)]);
    let denial = one(Span::exact(SECOND + 5), 1, DENIED);
    history.log.push(denial);
    assert_eq!(violations(&history), [Wrong::WronglyDenied]);
    history.idle = 1;
    assert_eq!(violations(&history), []);
    windows(&mut history)[0].quota = 3;
    assert_eq!(violations(&history), [Wrong::WronglyDenied]);
}

#[test]
fn a_denial_that_nobody_was_given_before_comes_from_no_cache() {
    // Promised for a millisecond later, when both units are still held for half a second.
    let early = |at: u64| one(Span::exact(at), 1, denied(MS));
    let half = 3 * SECOND / 2;
    let mut history = full();
    history.cached_us = SECOND;
    history.log.push(early(half));
    assert_eq!(violations(&history).len(), 1);
    // The same checks were denied before anything was taken, but longer ago than a denial is cached.
    for (ago, wrong) in [(9 * SECOND / 10, 0), (11 * SECOND / 10, 1)] {
        let mut history = history.clone();
        let before = |cost| one(Span::exact(half - ago), cost, DENIED);
        history.idle = 2;
        history.log.push(before(1));
        assert_eq!(violations(&history).len(), wrong, "{ago}");
        // Another cost is another denial.
        *history.log.last_mut().expect("it") = before(2);
        assert_eq!(violations(&history).len(), 1, "{ago}");
    }
}

#[test]
fn a_retry_after_is_late_by_what_its_own_answer_travelled_and_no_more() {
    // There is room at 2 s; an answer that arrived 5 ms after the decision brought a retry-after of 900 ms.
    let original = Span {
        from: SECOND + 100 * MS,
        to: SECOND + 105 * MS,
    };
    let told = |late: u64| {
        let again = Span::exact(SECOND + 500 * MS);
        one(again, 1, denied(500 * MS + late))
    };
    let mut history = full();
    history.cached_us = SECOND;
    history.log.push(one(original, 1, denied(900 * MS)));
    // Another client's answer took a second.
    let slow = Span {
        to: original.to + SECOND,
        ..original
    };
    let slow = of(1, slow, 1, DENIED);
    let quota_of_another = of(1, Span::exact(SECOND), 2, Said::Admitted);
    history.log.extend([quota_of_another, slow]);
    for (late, wrong) in [(5 * MS, 0), (10 * MS, 0), (12 * MS, 1)] {
        let mut history = history.clone();
        history.log.push(told(late));
        assert_eq!(violations(&history).len(), wrong, "{late}");
    }
}

#[test]
fn a_peek_at_two_windows_tells_the_one_with_the_least_room() {
    // Two of three in the short window, and two of four in the long one: one is left.
    let mut history = full();
    windows(&mut history)[0].quota = 3;
    let (quota, per_ms) = (4, 10_000);
    windows(&mut history).push(Window { quota, per_ms });
    for (left, wrong) in [(0, 1), (1, 0), (2, 1), (3, 2)] {
        let mut history = history.clone();
        history.log.push(looked(SECOND + 5, left));
        let found = violations(&history);
        assert_eq!(found.len(), wrong, "{left}: {found:?}");
    }
}

#[test]
fn a_request_without_a_verdict_may_have_taken_or_not() {
    for (left, wrong) in [(0, 0), (1, 0), (2, 1)] {
        let mut history = two_a_second(Algorithm::Log, &[Span::exact(SECOND)]);
        let unknown = one(Span::exact(SECOND + 1), 1, Said::Unknown);
        history.log.push(unknown);
        history.log.push(looked(SECOND + 5, left));
        assert_eq!(violations(&history).len(), wrong, "{left}");
    }
}

/// What happens to a sidecar at a second.
fn happens(second: u64, sidecar: usize, what: What) -> Entry {
    let Span { from, to } = Span::exact(second * SECOND);
    Entry {
        from,
        to,
        sidecar,
        what,
    }
}

/// A unit that a sidecar admits at a second.
fn admitted(second: u64, sidecar: usize, by: By) -> Entry {
    let mut entry = one(Span::exact(second * SECOND), 1, Said::Admitted);
    entry.sidecar = sidecar;
    if let What::Asked(request) = &mut entry.what {
        request.by = by;
    }
    entry
}

#[test]
fn a_share_that_two_sidecars_had_stays_in_its_window() {
    for (back, wrong) in [(13, 0), (3, 1)] {
        let link = |second, sidecar, link| happens(second, sidecar, What::Link(link));
        let log = vec![
            link(1, 1, Link::Cut),
            link(back, 1, Link::Good),
            admitted(14, 0, By::Sidecar),
            link(15, 0, Link::Cut),
            admitted(16, 0, By::Sidecar),
            link(17, 0, Link::Good),
            link(40, 1, Link::Cut),
            admitted(41, 1, By::Sidecar),
            link(42, 1, Link::Good),
        ];
        let mut history = History::new(vec![Limit::new(Algorithm::Fixed, 1, 60_000)], log);
        history.sidecars = 2;
        assert_eq!(violations(&history).len(), wrong, "back at {back} s");
    }
}

#[test]
fn units_of_a_lease_may_be_of_any_sidecar_of_a_fleet() {
    for (fleet, wrong) in [(false, 1), (true, 0)] {
        let mut log = vec![happens(1, 1, What::Policy(1))];
        log.extend([10, 11].map(|second| admitted(second, 0, By::Lease)));
        let mut history = History::new(vec![Limit::new(Algorithm::Fixed, 1, 60_000)], log);
        let other = Limit::new(Algorithm::Log, 2, 60_000);
        history.policies.push(vec![Some(other)]);
        (history.sidecars, history.fleet) = (2, fleet);
        assert_eq!(violations(&history).len(), wrong, "fleet: {fleet}");
    }
}

#[test]
fn an_envoy_that_starts_among_different_files_may_ask_for_what_a_sidecar_lacks() {
    for (second, starts, wrong) in [(30, true, 1), (70, true, 0), (70, false, 1)] {
        let mut log = vec![happens(0, 1, What::Up), happens(1, 1, What::Policy(1))];
        log.extend(starts.then(|| happens(20, 0, What::Envoy)));
        log.push(happens(second, 1, What::Unmetered { limit: 0 }));
        let mut history = History::new(vec![Limit::new(Algorithm::Log, 1, 1_000)], log);
        history.policies.push(vec![None]);
        (history.sidecars, history.fleet) = (2, true);
        let found = violations(&history);
        assert_eq!(found.len(), wrong, "at {second} s, starts: {starts}");
    }
}

#[test]
fn a_receipt_from_before_a_step_back_may_return_units_of_others() {
    for (by_ms, wrong) in [(-3_000, 0), (3_000, 1)] {
        let reset = What::Reset {
            limit: 0,
            key: 0,
            done: true,
        };
        let back = settled(0, 0, Told::Returned(1));
        let log = vec![
            admitted(10, 0, By::Sidecar),
            happens(11, 0, What::Clock(by_ms)),
            happens(12, 0, reset),
            admitted(13, 0, By::Sidecar),
            happens(15, 0, back),
            admitted(16, 0, By::Sidecar),
        ];
        let history = History::new(vec![Limit::new(Algorithm::Fixed, 1, 60_000)], log);
        assert_eq!(violations(&history).len(), wrong, "{by_ms}");
    }
}

#[test]
fn a_step_forward_fills_a_token_bucket_of_which_units_are_leased() {
    for (by_ms, lease_ms, wrong) in [
        (60_000, Some(200), 0),
        (60_000, None, 1),
        (-60_000, Some(200), 1),
    ] {
        let mut log = vec![
            admitted(10, 0, By::Sidecar),
            happens(11, 0, What::Clock(by_ms)),
        ];
        log.extend([12, 14, 15, 16].map(|second| admitted(second, 0, By::Sidecar)));
        let mut limit = Limit::new(Algorithm::Token(3), 3, 60_000);
        limit.lease_ms = lease_ms;
        let mut history = History::new(vec![limit], log);
        history.told = vec![13 * SECOND];
        assert_eq!(
            violations(&history).len(),
            wrong,
            "{by_ms} ms, {lease_ms:?}"
        );
    }
}
