//! Parts of leases in a VM: what is taken, ended, told and asked for.

use std::rc::Rc;

use super::*;
use crate::config::document::tests::set_of;
use crate::config::terms::WhenUnavailable;
use crate::question::Shadow;
use crate::rule::RuleSet;
use crate::wire::question_body;
use sluicegate_protocol::{LimitStatus, Verdict, WithoutStore};

const MS: u64 = 1_000;
const VERSION: PolicyVersion = PolicyVersion {
    instance: 7,
    epoch: 1,
};

/// A rule with two checks, and one that is a shadow.
fn rules() -> Rc<RuleSet> {
    set_of(&[
        r#"{"name":"real","checks":[{"limit":"l","key":[{"constant":"c"}]},{"limit":"m","key":[{"constant":"c"}]}],"when_unavailable":"deny"}"#,
        r#"{"name":"trial","shadow":true,"checks":[{"limit":"l","key":[{"constant":"c"}]}],"when_unavailable":"deny"}"#,
    ])
}

/// One check for each limit of the first rule that is named.
fn question(limits: &str, cost: u64) -> Question {
    let check = |limit| ResolvedCheck {
        rule: 0,
        limit: usize::from(limit == 'm'),
        key: "k".to_owned(),
        cost,
        reserved: None,
        quota: None,
    };
    Question {
        rules: rules(),
        checks: limits.chars().map(check).collect(),
        shadows: Vec::new(),
        when_unavailable: WhenUnavailable::Deny,
        grpc: false,
        traceparent: None,
    }
}

fn part(id: u64, limit: &'static str, units: u64, lasts_us: u64) -> LeasePart<'static> {
    LeasePart {
        id,
        limit: limit.into(),
        key: "k".into(),
        units,
        lasts_us,
        quota: 600,
        window_ms: 60_000,
        remaining: 400,
        reset_ms: 30_000,
    }
}

const fn times(sent_us: u64) -> CallTimes {
    CallTimes {
        sent_us,
        answered_us: sent_us + 2 * MS,
    }
}

/// An answer to a callout that told nothing.
fn lend(leases: &mut Leases, version: PolicyVersion, parts: &[LeasePart<'_>], sent_us: u64) {
    leases.answered(LeaseReport::default(), version, parts, times(sent_us));
}

/// Leases that were lent these parts by a callout at one millisecond.
fn leases(parts: &[LeasePart<'_>]) -> Leases {
    let mut leases = Leases::default();
    lend(&mut leases, VERSION, parts, MS);
    leases
}

/// Admits a request from leases, if they have the units.
fn admit(leases: &mut Leases, limits: &str, now_us: u64) -> bool {
    let question = question(limits, 1);
    let taken = leases.take(&question, now_us, 50 * MS);
    let decides = taken.covers_all(&question);
    if decides {
        leases.spend(&question, &taken);
    } else {
        leases.put_back(&question, &taken);
    }
    decides
}

fn told(id: u64, spent: u64, ended: bool, wants_per_s: u64) -> PartReport {
    PartReport {
        id,
        spent,
        decisions: spent,
        ended,
        wants_per_s,
    }
}

fn ended(id: u64, spent: u64) -> PartReport {
    told(id, spent, true, 0)
}

#[test]
fn a_part_admits_its_units_until_it_ends_and_never_denies() {
    let mut leases = leases(&[part(1, "l", 3, 100 * MS)]);
    assert!(!admit(&mut leases, "m", 10 * MS), "another limit");
    assert!(admit(&mut leases, "l", 10 * MS));
    assert!(admit(&mut leases, "l", 100 * MS + 999));
    // From before the callout was sent, not from its answer.
    assert!(!admit(&mut leases, "l", 101 * MS));
    let told = leases.report(101 * MS, false);
    assert_eq!(told.parts, [ended(1, 2)]);
    assert!(leases.report(101 * MS, false).parts.is_empty(), "once");
}

#[test]
fn more_is_asked_for_when_a_third_is_left_and_other_keys_join() {
    let mut leases = leases(&[part(1, "l", 8, 100 * MS), part(2, "m", 8, 100 * MS)]);
    for n in 1..=6 {
        assert!(!leases.wants_renewal(), "{n}");
        assert!(admit(&mut leases, "l", (2 + n) * MS));
    }
    assert!(leases.wants_renewal());
    assert!(admit(&mut leases, "m", 9 * MS));
    let report = leases.report(13 * MS, true);
    // 6 and 1 in the 10 ms since the answer.
    let wants = [told(1, 6, false, 600), told(2, 1, false, 100)];
    assert!(report.parts == wants && report.asks());
    assert!(admit(&mut leases, "l", 14 * MS));
    assert!(!leases.wants_renewal(), "it is under way");
    let more = [part(3, "l", 6, 100 * MS)];
    leases.answered(report, VERSION, &more, times(13 * MS));
    // The last unit of the first part.
    assert!(admit(&mut leases, "l", 16 * MS));
    assert!(!leases.wants_renewal());
    for now_ms in 17..=22 {
        assert!(admit(&mut leases, "l", now_ms * MS));
    }
    assert!(!admit(&mut leases, "l", 23 * MS));
    // One more of the first part than was told, and all of the second.
    let told = leases.report(30 * MS, true).parts.into_iter();
    let spent: Vec<_> = told.map(|one| (one.id, one.spent, one.ended)).collect();
    assert_eq!(spent, [(1, 8, true), (3, 6, true), (2, 1, false)]);
}

#[test]
fn no_callout_is_made_for_a_key_of_which_the_next_question_brings_enough() {
    let mut leases = leases(&[part(1, "l", 3, 1_000 * MS)]);
    for now_ms in [100, 400, 700] {
        assert!(admit(&mut leases, "l", now_ms * MS));
    }
    assert!(!admit(&mut leases, "l", 800 * MS));
    assert!(!leases.wants_renewal(), "five a second for another 0.2 s");
}

#[test]
fn a_renewal_that_brings_nothing_is_not_repeated_at_once() {
    let mut leases = leases(&[part(1, "l", 4, 1_000 * MS)]);
    for now_ms in 3..=5 {
        assert!(admit(&mut leases, "l", now_ms * MS));
    }
    let told = leases.report(6 * MS, true);
    assert!(told.asks());
    leases.answered(told, VERSION, &[], times(6 * MS));
    assert!(admit(&mut leases, "l", 9 * MS));
    assert!(!leases.wants_renewal());
    assert!(!admit(&mut leases, "l", 40 * MS));
    assert!(leases.wants_renewal());
}

#[test]
fn of_several_checks_those_with_a_part_are_taken_and_the_rest_is_asked_for() {
    let both = question("lm", 1);
    let mut leases = leases(&[part(1, "m", 8, 100 * MS)]);
    let taken = leases.take(&both, 10 * MS, 50 * MS);
    assert!(!taken.covers_all(&both) && taken.decisions_to_ask(&both) == 1);
    let body = question_body([(&both, &taken)], &[], Vec::new(), None);
    let asked = r#"{"decisions":[{"checks":[{"limit":"l","key":"k"}]}]}"#;
    assert_eq!(String::from_utf8(body).unwrap(), asked);
    let status = |remaining| LimitStatus {
        check: 0,
        limit: "l".into(),
        quota: 10,
        window_ms: 1_000,
        remaining,
        over: 0,
        reset_ms: 9,
        retry_after_ms: 0,
        until_changed: false,
        at_once: false,
        calendar: None,
        hold_ms: 0,
        unknown: Vec::new(),
        receipt: Vec::new(),
    };
    let checks = |verdict: Verdict<'static>| {
        let answered = [verdict];
        let verdicts = taken.verdicts(&both, &answered);
        match verdicts.as_ref() {
            [Verdict::Admitted(status)] => (true, status.check, status.remaining),
            [Verdict::Denied(status)] => (false, status.check, status.remaining),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(checks(Verdict::Admitted(status(9))), (true, 0, 9));
    // 400 for others and 7 of the part.
    assert_eq!(checks(Verdict::Admitted(status(500))), (true, 1, 407));
    assert_eq!(checks(Verdict::Denied(status(0))), (false, 0, 0));
    leases.put_back(&both, &taken);
    for n in 0..8 {
        let admitted = admit(&mut leases, "m", 20 * MS);
        assert!(admitted, "{n}: a denial put it back");
    }
    assert!(!admit(&mut leases, "m", 20 * MS));
}

#[test]
fn a_part_that_may_end_before_the_answer_is_not_used_with_other_checks() {
    let both = question("lm", 1);
    let mut leases = leases(&[part(1, "m", 8, 100 * MS)]);
    let taken = leases.take(&both, 51 * MS, 50 * MS);
    assert!(taken.is_empty());
    let taken = leases.take(&both, 51 * MS - 1, 50 * MS);
    assert!(leases.is_live(&both, &taken, 101 * MS - 1));
    assert!(!leases.is_live(&both, &taken, 101 * MS));
}

#[test]
fn shadow_rules_are_asked_for() {
    let mut both = question("l", 1);
    let mut checks = question("l", 1).checks;
    (checks[0].rule, checks[0].key) = (1, "s".to_owned());
    both.shadows = vec![Shadow { rule: 1, checks }];
    let mut leases = leases(&[part(1, "l", 8, 100 * MS)]);
    let taken = leases.take(&both, 10 * MS, 50 * MS);
    assert!(!taken.covers_all(&both) && taken.decisions_to_ask(&both) == 1);
    let body = String::from_utf8(question_body([(&both, &taken)], &[], Vec::new(), None)).unwrap();
    assert!(
        body.contains("trial") && !body.contains(r#""key":"k""#),
        "{body}"
    );
    // The decision is made, so it need not last until they are answered.
    let late = leases.take(&both, 100 * MS, 50 * MS);
    assert!(late.covers_enforced(&both));
    let answered = [Verdict::Unavailable { then: None }];
    let verdicts = taken.verdicts(&both, &answered);
    assert!(matches!(
        verdicts.as_ref(),
        [Verdict::Admitted(_), Verdict::Unavailable { .. }]
    ));
}

#[test]
fn the_end_of_a_part_undoes_an_admission_and_no_other_verdict() {
    let one = question("l", 1);
    let taken = leases(&[part(1, "l", 8, 100 * MS)]).take(&one, 10 * MS, 0);
    let admitted = taken.verdicts(&one, &[])[0].clone();
    let refused = Verdict::Unavailable {
        then: Some(WithoutStore::Deny),
    };
    let ended = [Verdict::Unavailable { then: None }, admitted.clone()];
    assert_eq!(Taken::ended(&[admitted.clone(), admitted.clone()]), ended);
    let other = [refused, admitted];
    assert_eq!(Taken::ended(&other), other);
}

#[test]
fn a_new_policy_ends_the_parts_of_the_earlier_one() {
    let one = question("l", 1);
    let mut leases = leases(&[part(1, "l", 8, 100 * MS)]);
    let taken = leases.take(&one, 10 * MS, 0);
    let of = |instance, epoch| PolicyVersion { instance, epoch };
    let lives = |leases: &mut Leases| leases.is_live(&one, &taken, 12 * MS);
    lend(&mut leases, of(9, 5), &[], 10 * MS);
    assert!(lives(&mut leases), "another sidecar's");
    lend(&mut leases, VERSION, &[], 10 * MS);
    let next = [part(2, "l", 8, 100 * MS)];
    lend(&mut leases, of(7, 2), &next, 10 * MS);
    assert!(!lives(&mut leases), "it is told as unspent");
    // An answer of the earlier policy is late.
    lend(&mut leases, VERSION, &[part(3, "l", 8, 100 * MS)], 10 * MS);
    let told = leases.report(12 * MS, false).parts;
    assert_eq!(told, [ended(1, 0), ended(3, 0)]);
    assert!(admit(&mut leases, "l", 12 * MS));
}

#[test]
fn nothing_is_spent_without_a_clock_and_no_answer_holds_forever() {
    let mut leases = Leases::default();
    lend(&mut leases, VERSION, &[part(1, "l", 8, MS)], 0);
    assert!(!admit(&mut leases, "l", 1));
    let forever = [part(2, "l", u64::MAX, u64::MAX)];
    lend(&mut leases, VERSION, &forever, MS);
    assert!(admit(&mut leases, "l", 10_000 * MS));
    assert!(!admit(&mut leases, "l", 10_001 * MS));
}

#[test]
fn the_number_of_keys_is_bounded_and_idle_ones_are_forgotten() {
    let named = |n: u64| LeasePart {
        key: format!("k{n}").into(),
        ..part(n, "l", 8, 100 * MS)
    };
    let parts: Vec<_> = (1..=1_025).map(named).collect();
    let mut leases = leases(&parts);
    assert_eq!(leases.report(2 * MS, false).parts, [ended(1_025, 0)]);
    let reports = std::iter::repeat_with(|| leases.report(2_000 * MS, false).parts.len());
    let told = reports.take_while(|parts| *parts > 0).take(1_025);
    assert_eq!(told.sum::<usize>(), 1_024);
    assert!(leases.is_empty());
}

#[test]
fn a_part_whose_limit_or_key_no_question_has_is_not_kept() {
    let long = "x".repeat(1 << 20);
    let mut parts = [1, 2].map(|id| part(id, "l", 8, 100 * MS));
    parts[0].key = long.as_str().into();
    parts[1].limit = long.as_str().into();
    let mut leases = leases(&parts);
    let told = leases.report(2 * MS, false);
    assert_eq!(told.parts, [ended(1, 0), ended(2, 0)]);
    assert!(leases.is_empty());
}
