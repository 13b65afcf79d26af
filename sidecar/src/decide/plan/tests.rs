//! How long a denial may be cached, and which verdicts bring receipts.

use super::*;
use crate::decide::overrides::Overrides;
use crate::policy::Policy;
use sluicegate_protocol::{Check, LimitStatus, Verdict};

/// The verdict on one decision that asks for a receipt or not, by the store or by this sidecar's share, under a limit with
/// these options. Denials say "in a minute", which is also the policy's `denial_ttl`.
fn status(options: &str, receipt: bool, admitted: bool, source: Source) -> LimitStatus<'static> {
    let policy = format!(
        "denial_ttl: 60s\nlimits: {{ l: {{ algorithm: fixed_window, windows: [{{ quota: 9000, per: 24h }}] {options} }} }}"
    );
    let policy = Policy::parse(&policy).unwrap();
    let decision = Asked {
        checks: vec![Check {
            limit: "l".into(),
            key: "k".into(),
            cost: 1,
            quota: None,
            within_ms: None,
            most: None,
        }],
        peek: false,
        receipt,
        shadow: None,
        traceparent: None,
    };
    let overrides = Overrides::new(&policy, None);
    let asked = [Ok(decision)];
    let plan = Plan::new(Basis::of(&policy, overrides.at(0)), &asked);
    let outcome = Outcome {
        admitted,
        decided_by: 0,
        remaining: 0,
        over: 0,
        reset_us: 60_000_000,
        retry_after_us: if admitted { 0 } else { 60_000_000 },
        ended: 0,
        at_us: 1_790_000_000_000_000,
    };
    let (outcome, fallbacks) = match source {
        Source::Share => (None, vec![Fallback::Share(outcome)]),
        _ => (Some(outcome), Vec::new()),
    };
    let decided = plan.verdicts(&[outcome], &fallbacks, 0);
    assert_eq!(decided[0].source, source);
    match &decided[0].verdict {
        Verdict::Admitted(status) | Verdict::Denied(status) => status.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shares_denial_is_not_cached() {
    let denied = |source| status("", false, false, source);
    assert_eq!(denied(Source::Store).hold_ms, 60_000);
    let by_share = denied(Source::Share);
    // The client may be told when to come again, but not refused until then: the store may be back before.
    assert_eq!((by_share.hold_ms, by_share.retry_after_ms), (0, 60_000));
}

#[test]
fn what_a_share_admits_has_no_receipt() {
    let admitted = |source| status("", true, true, source);
    assert_eq!(admitted(Source::Store).receipt.len(), 1);
    // The store would know nothing of it.
    assert_eq!(admitted(Source::Share).receipt, Vec::<String>::new());
}

#[test]
fn a_denial_by_a_limit_with_leases_is_not_cached_for_longer_than_a_lease_lasts() {
    let options = ", lease: { longest: 10s }";
    // Units may come back as soon as another sidecar's lease ends.
    assert_eq!(status(options, false, false, Source::Store).hold_ms, 10_000);
}

#[test]
fn limits_that_are_not_known_are_left_out_and_named_for_those_who_read_that() {
    let policy = "limits: { l: { algorithm: fixed_window, windows: [{ quota: 2, per: 24h }] } }";
    let policy = Policy::parse(policy).unwrap();
    let overrides = Overrides::new(&policy, None);
    let decided = |limits: &[&str], names_unknown: bool, receipt: bool, admitted: bool| {
        let check = |limit: &&str| Check {
            limit: (*limit).to_owned().into(),
            key: "k".into(),
            cost: 1,
            quota: None,
            within_ms: None,
            most: None,
        };
        let asked = [Ok(Asked {
            checks: limits.iter().map(check).collect(),
            peek: false,
            receipt,
            shadow: None,
            traceparent: None,
        })];
        let basis = Basis {
            names_unknown,
            ..Basis::of(&policy, overrides.at(0))
        };
        let plan = Plan::new(basis, &asked);
        let outcome = plan.batch.decisions.first().map(|decision| {
            assert_eq!(decision.takes.len(), 1, "what is known is taken");
            Outcome {
                admitted,
                decided_by: 0,
                remaining: 0,
                over: 0,
                reset_us: 0,
                retry_after_us: 0,
                ended: 0,
                at_us: 0,
            }
        });
        match &plan.verdicts(&[outcome], &[], 0)[0].verdict {
            Verdict::Admitted(status) => Some((true, status.check, status.unknown.clone())),
            Verdict::Denied(status) => Some((false, status.check, status.unknown.clone())),
            _ => None,
        }
    };
    for admitted in [true, false] {
        let known = decided(&["x", "l", "y"], true, false, admitted);
        assert_eq!(known, Some((admitted, 1, vec![0, 2])));
    }
    assert_eq!(
        decided(&["l", "x"], false, false, true),
        None,
        "an older filter"
    );
    assert_eq!(
        decided(&["l", "x"], true, true, true),
        None,
        "receipts are in order"
    );
    assert_eq!(
        decided(&["x", "y"], true, false, true),
        None,
        "nothing is known"
    );
}
