//! A request is bounded by the buckets that it visits, not by its number of decisions.

use sluicegate::decide::{Basis, Overrides, Plan};
use sluicegate::policy::Policy;
use sluicegate_engine::MAX_REQUEST_WEIGHT;
use sluicegate_protocol::{Code, Verdict};

use super::support;

/// What becomes of so many decisions of as many checks, each of a limit with so many windows.
fn plan(windows: u64, decisions: usize, checks: usize, check: impl Fn(Plan<'_>)) {
    let window = |n: u64| format!("{{ quota: {n}, per: {n}s }}");
    let windows = (1..=windows).map(window).collect::<Vec<_>>().join(", ");
    let policy = format!("limits: {{ l: {{ algorithm: fixed_window, windows: [{windows}] }} }}");
    let one = |decision: usize| {
        let keys = (0..checks).map(|n| format!("{decision}-{n}"));
        let checks = keys.map(|key| support::check("l", key, 1, None));
        Ok(support::decision(checks.collect()))
    };
    let asked: Vec<_> = (0..decisions).map(one).collect();
    let policy = Policy::parse(&policy).unwrap();
    let overrides = Overrides::default();
    check(Plan::new(Basis::of(&policy, overrides.at(0)), &asked));
}

#[test]
fn decisions_beyond_the_bound_of_a_request_are_refused_and_the_rest_is_decided() {
    // 256 decisions of 32 checks with 8 windows held Redis for 2.4 s.
    plan(8, 256, 32, |plan| {
        assert_eq!(plan.batch.weight(), MAX_REQUEST_WEIGHT);
        let fit = plan.batch.decisions.len();
        let verdicts = plan.verdicts(&vec![None; fit], &[], 0);
        for (index, decided) in verdicts.iter().enumerate() {
            match &decided.verdict {
                // Sent to the store, without an answer.
                Verdict::Unavailable { .. } => assert!(index < fit),
                Verdict::Error(problem) => {
                    assert!(index >= fit && problem.code == Code::RequestTooLarge);
                    for part in ["`decisions`", "4352", "4096", "several requests"] {
                        support::has(&problem.message, part);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_request_of_1024_single_checks_is_within_the_bound() {
    plan(1, 1_024, 1, |plan| {
        assert_eq!(plan.batch.decisions.len(), 1_024)
    });
}
