//! Generated histories with and without cached denials: every verdict is the same.

use proptest::prelude::*;
use sluicegate::decide::{Basis, Overrides, Plan};
use sluicegate::policy::Policy;
use sluicegate_certificates::{CallTimes, Certificates, fingerprint};
use sluicegate_engine::Memory;
use sluicegate_protocol::{Decision, Verdict};

use super::support;

const POLICY: &str = "
denial_ttl: 800ms
limits:
  log:     { algorithm: sliding_log, windows: [{ quota: 5, per: 300ms }, { quota: 8, per: 2s }] }
  sliding: { algorithm: sliding_window, windows: [{ quota: 6, per: 1s, precision: 100ms }] }
  fixed:   { algorithm: fixed_window, windows: [{ quota: 4, per: 500ms }] }
  token:   { algorithm: token_bucket, windows: [{ quota: 3, per: 1s, burst: 5 }] }
";
const LIMITS: [&str; 4] = ["log", "sliding", "fixed", "token"];

/// The same with lower quotas and a block of one key, which end one after the other while a history runs.
fn overridden() -> String {
    let ends = |ms: u64| format!("until: \"1970-01-01T00:16:40.{ms:03}Z\"");
    let terms = |limit: &str| match limit {
        "log:" => format!("windows: [{{ quota: 4, per: 2s }}], {}", ends(150)),
        "sliding:" => format!("blocked: true, {}", ends(40)),
        "fixed:" => format!("quota: 4, {}", ends(333)),
        _ => format!("quota: 2, burst: 4, {}", ends(90)),
    };
    let line = |line: &str| {
        let limit = line.split_whitespace().next().unwrap_or_default();
        match line.strip_suffix("] }") {
            Some(start) => {
                let terms = terms(limit);
                format!("{start}], overrides: [{{ key: \"0\", {terms} }}] }}\n")
            }
            None => format!("{line}\n"),
        }
    };
    POLICY.lines().map(line).collect()
}

/// One decision: its checks by limit, key and cost; the pause before it, and how long its call takes.
type Step = (Vec<(usize, u8, u64)>, u64, u64);

fn step() -> impl Strategy<Value = Step> {
    let check = (0..LIMITS.len(), 0..2_u8, 0..4_u64);
    // Often the same question again at once, which is what cached denials are for.
    let pause = prop_oneof![5 => 0..2_000_u64, 3 => 0..100_000_u64, 1 => 0..3_000_000_u64];
    (prop::collection::vec(check, 1..3), pause, 0..5_000_u64)
}

fn decision((checks, _, _): &Step) -> Decision<'static> {
    let one = |(limit, key, cost): &(usize, u8, u64)| {
        support::check(LIMITS[*limit], key.to_string(), *cost, None)
    };
    support::decision(checks.iter().map(one).collect())
}

fn print(decision: &Decision<'_>) -> String {
    let checks = decision.checks.iter();
    fingerprint(checks.map(|c| (c.limit.as_ref(), c.key.as_ref(), c.cost, c.quota)))
}

/// Decides on an engine, as a sidecar does.
fn ask(
    engine: &mut Memory,
    policy: &Policy,
    decision: &Decision<'static>,
    (asked_us, decided_us): (u64, u64),
) -> Verdict<'static> {
    let asked = [Ok(decision.clone())];
    let overrides = Overrides::new(policy, None);
    let overrides = overrides.at(asked_us / 1_000);
    let plan = Plan::new(Basis::of(policy, overrides), &asked);
    let outcomes = engine.decide(decided_us, &plan.batch).into_iter();
    let outcomes: Vec<_> = outcomes.map(Result::ok).collect();
    let decided = plan.verdicts(&outcomes, &[], 0);
    decided[0].verdict.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn cached_denials_never_change_a_verdict(steps in prop::collection::vec(step(), 1..120), overrides: bool) {
        let policy = if overrides { overridden() } else { POLICY.to_owned() };
        let policy = Policy::parse(&policy).unwrap();
        let (mut plain, mut behind) = (Memory::default(), Memory::default());
        let mut certificates = Certificates::new(50);
        let mut now_us = 1_000_000_000;
        for step in &steps {
            let decision = decision(step);
            if decision.checks.iter().map(|check| check.cost).sum::<u64>() > 4 {
                continue;
            }
            let sent_us = now_us + step.1;
            // A cached denial answers at once. The store decides some time between question and answer; a window may
            // end after the cache lookup and before that decision.
            let held = certificates.covering(&print(&decision), sent_us);
            let call_us = if held.is_some() { 0 } else { step.2 };
            let (decided_us, answered_us) = (sent_us + call_us / 2, sent_us + call_us);
            let without = ask(&mut plain, &policy, &decision, (sent_us, decided_us));
            match held {
                Some(_) => prop_assert!(matches!(&without, Verdict::Denied(_)), "denied from the cache, but the store says {without:?}"),
                None => {
                    let with = ask(&mut behind, &policy, &decision, (sent_us, decided_us));
                    prop_assert_eq!(&with, &without);
                    if let Verdict::Denied(status) = &with {
                        certificates.hold(&print(&decision), status, CallTimes { sent_us, answered_us });
                    }
                }
            }
            now_us = answered_us;
        }
    }
}
