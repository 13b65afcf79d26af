//! Requests of arbitrary bytes: nothing panics, keys are bounded, and different subjects have different keys.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod support;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate_certificates::CallTimes;
use sluicegate_protocol::{LeasePart, PolicyVersion};
use sluicegate_rules::{
    Headers, LeaseReport, Leases, Question, ResolvedCheck, Rules, Taken, WhenUnavailable,
    read_answer,
};
use support::{FakeRequest, everything, rules};

static EVERYTHING: LazyLock<Rules> = LazyLock::new(|| rules(everything::RULES));

/// Bytes with a meaning in some syntax, and arbitrary ones.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let meaning = proptest::sample::select(
        b"/%.;?#&=,:@[]\\\"' \x00\xff\xc3\xa9aA0129fF{}*+-~<>\r\n\t".to_vec(),
    );
    vec(prop_oneof![3 => meaning, 1 => any::<u8>()], 0..60)
}

fn requests() -> impl Strategy<Value = FakeRequest> {
    let header = (
        proptest::sample::select(everything::NAMES.to_vec()),
        bytes(),
    );
    let attribute = (
        proptest::sample::select(everything::ATTRIBUTES.to_vec()),
        bytes(),
    );
    let path = bytes().prop_map(|rest| [b"/".as_slice(), &rest].concat());
    (path, vec(header, 0..14), vec(attribute, 0..5)).prop_map(|(path, headers, attributes)| {
        let first = (":path", path);
        FakeRequest {
            headers: std::iter::once(first).chain(headers).collect::<Headers>(),
            attributes: attributes
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<BTreeMap<_, _>>(),
        }
    })
}

/// Values of key components, some of which contain the encoding of others.
fn lists() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let value = prop_oneof![
        bytes(),
        proptest::sample::select(vec![
            b"k=v".to_vec(),
            b"k;k=v".to_vec(),
            b"%3B".to_vec(),
            b"#".to_vec()
        ]),
    ];
    vec(
        value.prop_filter("an empty header is none", |value| !value.is_empty()),
        1..4,
    )
}

fn key_of(list: &[Vec<u8>], plain: bool) -> String {
    let components: Vec<String> = (0..list.len())
        .map(|n| format!(r#"{{"header":"h{n}","plain":{plain}}}"#))
        .collect();
    let rules = support::checking(&format!(
        r#"{{"limit":"l","key":[{}]}}"#,
        components.join(",")
    ));
    let names: Vec<String> = (0..list.len()).map(|n| format!("h{n}")).collect();
    let headers: Vec<(&str, &[u8])> = names
        .iter()
        .zip(list)
        .map(|(name, value)| (name.as_str(), value.as_slice()))
        .collect();
    support::question(&rules, &support::get("/", &headers)).checks[0]
        .key
        .clone()
}

/// What happens to leases next, after so many microseconds.
#[derive(Clone, Debug)]
enum Step {
    /// An answer with these parts (number, units, how long they last) of this policy.
    Answer(Vec<(u64, u64, u64)>, u64),
    /// A request of this cost; whether it is admitted.
    Take(u64, bool),
    /// A callout that is answered or fails, with or without a wish for more.
    Report(bool, bool),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 0..200_000u64, any::<u64>(), Just(u64::MAX)]
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let parts = vec((0..40u64, number(), number()), 0..4);
    let step = prop_oneof![
        (parts, 0..3u64).prop_map(|(parts, epoch)| Step::Answer(parts, epoch)),
        (number(), any::<bool>()).prop_map(|(cost, admitted)| Step::Take(cost, admitted)),
        (any::<bool>(), any::<bool>()).prop_map(|(renew, fails)| Step::Report(renew, fails)),
    ];
    vec((number(), step), 0..40)
}

/// Whatever a sidecar lends, the filter spends no more of it.
fn run_leases(steps: Vec<(u64, Step)>) {
    let rules = &*EVERYTHING;
    let (mut leases, mut now_us) = (Leases::default(), 1_000_000_u64);
    let mut lent: BTreeMap<u64, u64> = BTreeMap::new();
    for (later_us, step) in steps {
        now_us = now_us.saturating_add(later_us);
        match step {
            Step::Answer(parts, epoch) => {
                let part = |(id, units, lasts_us)| LeasePart {
                    id,
                    limit: "l".into(),
                    key: "k".into(),
                    units,
                    lasts_us,
                    quota: units,
                    window_ms: lasts_us,
                    remaining: units,
                    reset_ms: lasts_us,
                };
                let parts: Vec<_> = parts.into_iter().map(part).collect();
                for part in &parts {
                    let sum = lent.entry(part.id).or_default();
                    *sum = sum.saturating_add(part.units);
                }
                let version = PolicyVersion { instance: 7, epoch };
                let times = CallTimes {
                    sent_us: now_us.saturating_sub(1_000),
                    answered_us: now_us,
                };
                leases.answered(LeaseReport::default(), version, &parts, times);
            }
            Step::Take(cost, admitted) => {
                let check = ResolvedCheck {
                    rule: 1,
                    limit: 0,
                    key: "k".to_owned(),
                    cost,
                    quota: None,
                };
                let question = Question {
                    checks: vec![check],
                    shadows: Vec::new(),
                    when_unavailable: WhenUnavailable::Deny,
                    grpc: false,
                    traceparent: None,
                };
                let taken = leases.take(rules, &question, now_us, 50_000);
                if admitted && leases.is_live(rules, &question, &taken, now_us) {
                    leases.spend(rules, &question, &taken);
                } else {
                    leases.put_back(rules, &question, &taken);
                }
            }
            Step::Report(renew, fails) => {
                let report = leases.report(now_us, renew);
                for part in &report.parts {
                    assert!(part.spent <= lent[&part.id], "{part:?}");
                }
                if fails {
                    leases.failed(report, now_us);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_makes_the_rules_panic_and_keys_are_bounded(request in requests()) {
        use sluicegate_rules::Evaluation;
        let rules = &*EVERYTHING;
        let counters = rules.counters().names().len();
        let evaluation = rules.evaluate(&request, &mut |index| assert!(index < counters));
        if let Evaluation::Ask(question) = evaluation {
            let shadows = question.shadows.iter().flat_map(|shadow| &shadow.checks);
            for check in question.checks.iter().chain(shadows) {
                prop_assert!((1..=256).contains(&check.key.len()), "{}", check.key);
                prop_assert!(check.key.bytes().all(|byte| (0x21..0x7f).contains(&byte)), "{}", check.key);
                prop_assert!((1..=9).contains(&check.cost));
            }
            // The sidecar's own reader accepts the question.
            let body = rules.question_body([(&question, &Taken::default())], &[]);
            let read = sluicegate_protocol::read_decisions(&body).unwrap();
            prop_assert!(read.decisions.iter().all(Result::is_ok), "{}", String::from_utf8_lossy(&body));
        }
    }

    #[test]
    fn arbitrary_answers_do_not_panic(body in bytes(), decisions in 0_usize..4) {
        let _ = read_answer(&body, decisions);
    }

    #[test]
    fn no_answer_makes_the_leases_panic_or_spend_more_than_was_lent(steps in steps()) {
        run_leases(steps);
    }

    #[test]
    fn arbitrary_configurations_do_not_panic(bytes in bytes()) {
        let _ = sluicegate_rules::parse(&bytes);
    }

    #[test]
    fn headers_of_arbitrary_bytes_are_read_as_far_as_they_go(bytes in bytes()) {
        prop_assert!(Headers::from_pairs(bytes).iter().count() < 60);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn different_components_never_have_the_same_key(one in lists(), other in lists(), plain: bool) {
        let same = key_of(&one, plain) == key_of(&other, plain);
        prop_assert_eq!(same, one == other);
        prop_assert_ne!(key_of(&one, true), key_of(&one, false));
    }
}
