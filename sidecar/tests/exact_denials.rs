//! Generated histories with and without denial certificates: every verdict is the same.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

use proptest::prelude::*;
use sluicegate::decide::Plan;
use sluicegate::policy::Policy;
use sluicegate::store::Settled;
use sluicegate::telemetry::verdict::Told;
use sluicegate_certificates::{Asked, Certificates, fingerprint};
use sluicegate_engine::Memory;
use sluicegate_protocol::{Check, Decision, Verdict};

const POLICY: &str = "
denial_ttl: 800ms
limits:
  log:     { algorithm: sliding_log, windows: [{ quota: 5, per: 300ms }, { quota: 8, per: 2s }] }
  sliding: { algorithm: sliding_window, windows: [{ quota: 6, per: 1s, precision: 100ms }] }
  fixed:   { algorithm: fixed_window, windows: [{ quota: 4, per: 500ms }] }
  token:   { algorithm: token_bucket, windows: [{ quota: 3, per: 1s, burst: 5 }] }
";
const LIMITS: [&str; 4] = ["log", "sliding", "fixed", "token"];

/// What is asked: checks by limit, key and cost; how long after the one before, and how long its call takes.
type Step = (Vec<(usize, u8, u64)>, u64, u64);

fn step() -> impl Strategy<Value = Step> {
    let check = (0..LIMITS.len(), 0..2_u8, 0..4_u64);
    // Often the same question again at once, which is what certificates are for.
    let pause = prop_oneof![5 => 0..2_000_u64, 3 => 0..100_000_u64, 1 => 0..3_000_000_u64];
    (prop::collection::vec(check, 1..3), pause, 0..5_000_u64)
}

fn decision((checks, _, _): &Step) -> Decision<'static> {
    let check = |(limit, key, cost): &(usize, u8, u64)| Check {
        limit: LIMITS[*limit].into(),
        key: key.to_string().into(),
        cost: *cost,
    };
    Decision {
        checks: checks.iter().map(check).collect(),
        peek: false,
        receipt: false,
        shadow: None,
        traceparent: None,
    }
}

fn print(decision: &Decision<'_>) -> String {
    fingerprint(
        decision
            .checks
            .iter()
            .map(|c| (c.limit.as_ref(), c.key.as_ref(), c.cost)),
    )
}

/// Asks an engine, as a sidecar does.
fn ask(
    engine: &mut Memory,
    policy: &Policy,
    decision: &Decision<'static>,
    now_us: u64,
) -> Verdict<'static> {
    let asked = [Ok(decision.clone())];
    let plan = Plan::new(policy, &asked, |_| None);
    let outcomes = engine.decide(now_us, &plan.batch).into_iter();
    let settled: Vec<_> = outcomes
        .map(|outcome| {
            Some(Settled {
                outcome: outcome.unwrap(),
            })
        })
        .collect();
    let told: Vec<Told<'_>> = plan.verdicts(&settled, &[]);
    match &told[0].verdict {
        Verdict::Admitted(standing) => Verdict::Admitted(standing.clone().into_owned()),
        Verdict::Denied(standing) => Verdict::Denied(standing.clone().into_owned()),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn with_and_without_certificates_every_verdict_is_the_same(steps in prop::collection::vec(step(), 1..120)) {
        let policy = Policy::parse(POLICY).unwrap();
        let (mut plain, mut behind) = (Memory::new(), Memory::new());
        let mut certificates = Certificates::new(50);
        let mut now_us = 1_000_000_000;
        for step in &steps {
            let decision = decision(step);
            if decision.checks.iter().map(|check| check.cost).sum::<u64>() > 4 {
                continue;
            }
            let sent_us = now_us + step.1;
            // A certificate answers at once; the store decides somewhere between the question and its answer, and by then
            // a window may have ended that has not when the certificate is looked up.
            let held = certificates.covering(&print(&decision), sent_us);
            let call_us = if held.is_some() { 0 } else { step.2 };
            let (decided_us, answered_us) = (sent_us + call_us / 2, sent_us + call_us);
            let without = ask(&mut plain, &policy, &decision, decided_us);
            match held {
                Some(_) => prop_assert!(matches!(&without, Verdict::Denied(_)), "denied here, there {without:?}"),
                None => {
                    let with = ask(&mut behind, &policy, &decision, decided_us);
                    prop_assert_eq!(&with, &without);
                    if let Verdict::Denied(standing) = &with {
                        certificates.hold(&print(&decision), standing, Asked { sent_us, answered_us });
                    }
                }
            }
            now_us = answered_us;
        }
    }
}
