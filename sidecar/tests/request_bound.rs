//! A request is bounded by the buckets that it visits, not by its number of decisions.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test is meant to panic when it fails"
)]

use sluicegate::decide::{OverridesNow, Plan};
use sluicegate::policy::Policy;
use sluicegate_engine::MAX_REQUEST_WEIGHT;
use sluicegate_protocol::{Check, Code, Decision, Verdict};

/// A limit with eight windows, the maximum.
fn policy() -> Policy {
    let window = |n: u64| format!("{{ quota: {n}, per: {n}s }}");
    let windows: Vec<_> = (1..=8).map(window).collect();
    let text = format!(
        "limits: {{ deep: {{ algorithm: fixed_window, windows: [{}] }} }}",
        windows.join(", ")
    );
    Policy::parse(&text).unwrap()
}

fn decision(name: usize, checks: usize) -> Decision<'static> {
    let check = |n: usize| Check {
        limit: "deep".into(),
        key: format!("{name}-{n}").into(),
        cost: 1,
        quota: None,
    };
    Decision {
        checks: (0..checks).map(check).collect(),
        peek: false,
        receipt: false,
        shadow: None,
        traceparent: None,
    }
}

#[test]
fn s22_decisions_beyond_the_bound_of_a_request_are_refused_and_the_rest_is_decided() {
    let policy = policy();
    // 256 decisions of 32 checks with 8 windows held Redis for 2.4 s.
    let asked: Vec<_> = (0..256).map(|name| Ok(decision(name, 32))).collect();
    let plan = Plan::new(&policy, &asked, OverridesNow::default(), None, |_| None);
    assert_eq!(plan.batch.weight(), MAX_REQUEST_WEIGHT);
    let fit = plan.batch.decisions.len();
    let verdicts = plan.verdicts(&vec![None; fit], &[], 0);
    for (index, decided) in verdicts.iter().enumerate() {
        match &decided.verdict {
            Verdict::Unavailable { .. } => {
                assert!(index < fit, "sent to the store, without an answer")
            }
            Verdict::Error { code, message, .. } => {
                assert!(index >= fit && *code == Code::RequestTooLarge);
                assert!(message.contains("`decisions`") && message.contains("4352"));
                assert!(message.contains("4096") && message.contains("several requests"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn s7_a_request_of_1024_single_checks_is_within_the_bound() {
    let policy = Policy::parse(
        "limits: { l: { algorithm: fixed_window, windows: [{ quota: 5, per: 1s }] } }",
    );
    let one = |n: usize| {
        let mut decision = decision(n, 1);
        decision.checks[0].limit = "l".into();
        Ok(decision)
    };
    let asked: Vec<_> = (0..1_024).map(one).collect();
    let plan = Plan::new(
        &policy.unwrap(),
        &asked,
        OverridesNow::default(),
        None,
        |_| None,
    );
    assert_eq!(plan.batch.decisions.len(), 1_024);
}
