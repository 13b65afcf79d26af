//! Quotas that requests ask for: which counts, on the embedded store.

use sluicegate::decide::{Basis, Overrides, Plan};
use sluicegate::policy::Policy;
use sluicegate_engine::Memory;
use sluicegate_protocol::{Check, Decision, Problem, Verdict};

use super::support;

const POLICY: &str = "
limits:
  granted: { algorithm: sliding_log, windows: [{ quota: 3, per: 1h }], quota_from_request: { max: 10 } }
  fixed: { algorithm: fixed_window, windows: [{ quota: 3, per: month }], quota_from_request: { max: 10 } }
  own: { algorithm: sliding_log, windows: [{ quota: 3, per: 1h }] }
";

fn check(limit: &'static str, cost: u64, quota: Option<u64>) -> Check<'static> {
    support::check(limit, "k".to_owned(), cost, quota)
}

fn decision(checks: &[Check<'static>]) -> Decision<'static> {
    support::decision(checks.to_vec())
}

/// Whether it was admitted, the quota that counted, and what remains; nothing for a decision that cannot be made.
type Answered = Option<(bool, u64, u64)>;

/// The verdicts, and the limits whose policy did not accept a quota.
fn ask(
    engine: &mut Memory,
    decisions: impl IntoIterator<Item = Decision<'static>>,
) -> (Vec<Answered>, Vec<String>) {
    let policy = Policy::parse(POLICY).unwrap();
    let asked: Vec<Result<_, Problem>> = decisions.into_iter().map(Ok).collect();
    let overrides = Overrides::default();
    let plan = Plan::new(Basis::of(&policy, overrides.at(0)), &asked);
    let outcomes = engine.decide(1_790_000_000_000_000, &plan.batch);
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::ok).collect();
    let answered = |verdict: &Verdict<'_>| match verdict {
        Verdict::Admitted(status) => Some((true, status.quota, status.remaining)),
        Verdict::Denied(status) => Some((false, status.quota, status.remaining)),
        Verdict::Error(_) => None,
        Verdict::Unavailable { .. } => panic!("{verdict:?}"),
    };
    let refused = plan.refused_quotas.iter().map(|limit| limit.name.clone());
    let refused = refused.collect();
    let verdicts = plan.verdicts(&outcomes, &[], 0);
    let verdicts = verdicts.iter().map(|decided| answered(&decided.verdict));
    (verdicts.collect(), refused)
}

#[test]
fn decisions_of_one_request_are_each_counted_by_their_own_quota_on_one_count() {
    for limit in ["granted", "fixed"] {
        let mut engine = Memory::default();
        let one = |quota| decision(&[check(limit, 1, quota)]);
        // 0: none.
        let quotas = [2, 2, 2, 0, 5, 0, 5, 5, 10].map(|quota| (quota > 0).then_some(quota));
        let (verdicts, refused) = ask(&mut engine, quotas.map(one));
        // Whether it was admitted, its quota and what remains.
        let expected = "+2:1 +2:0 -2:0 +3:0 +5:1 -3:0 +5:0 -5:0 +10:4";
        let spelt = verdicts.into_iter().map(|verdict| match verdict.unwrap() {
            (true, quota, left) => format!("+{quota}:{left}"),
            (false, quota, left) => format!("-{quota}:{left}"),
        });
        assert_eq!(spelt.collect::<Vec<_>>().join(" "), expected, "{limit}");
        assert!(refused.is_empty());
    }
}

#[test]
fn a_quota_that_the_policy_does_not_accept_leaves_the_limits_own_in_force() {
    for (limit, quota) in [
        ("granted", 0),
        ("granted", 11),
        ("granted", u64::MAX),
        ("own", 2),
    ] {
        let asked = decision(&[check(limit, 1, Some(quota))]);
        let (verdicts, refused) = ask(&mut Memory::default(), [asked]);
        assert_eq!(verdicts, [Some((true, 3, 2))], "{limit} {quota}");
        assert_eq!(refused, [limit]);
    }
}

#[test]
fn a_cost_is_measured_by_the_quota_that_counts() {
    let asked = |cost, quota| decision(&[check("granted", cost, quota)]);
    let all = [asked(8, Some(8)), asked(4, None), asked(3, Some(2))];
    let (verdicts, _) = ask(&mut Memory::default(), all);
    assert_eq!(verdicts, [Some((true, 8, 0)), None, None]);
}

#[test]
fn of_two_quotas_for_the_same_key_in_one_decision_the_smaller_counts() {
    for quotas in [[Some(9), Some(4)], [Some(4), Some(9)]] {
        let both = decision(&quotas.map(|quota| check("granted", 1, quota)));
        let (verdicts, _) = ask(&mut Memory::default(), [both]);
        assert_eq!(verdicts, [Some((true, 4, 2))]);
    }
    let with_default = decision(&[check("granted", 1, Some(9)), check("granted", 1, None)]);
    let (verdicts, _) = ask(&mut Memory::default(), [with_default]);
    assert_eq!(verdicts, [Some((true, 3, 1))]);
}

#[test]
fn the_examples_of_the_documents_are_accepted() {
    let page = include_str!("../../docs/quotas.md");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    let policies: Vec<_> = blocks
        .filter(|block| block.starts_with("limits:"))
        .collect();
    assert_eq!(policies.len(), 3);
    for policy in policies {
        Policy::parse(policy).unwrap_or_else(|why| panic!("{why}: {policy}"));
    }
}
