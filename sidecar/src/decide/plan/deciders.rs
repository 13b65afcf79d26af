//! The deciders, in this order: the first that can decide does.
//!
//! | | decides |
//! |---|---|
//! | [`by_certificate`] | decisions with a cached denial |
//! | [`by_policy`] | checks that the policy cannot decide: an error |
//! | [`by_override`] | blocked and unlimited keys |
//! | [`by_lease`] | checks of keys that this sidecar holds enough leased units of |
//! | [`by_store`] | all others, in one call for all decisions of a request |
//! | [`by_share`] | those without an outcome of the store: by this sidecar's share, or as the policy says |

use sluicegate_engine::Outcome;
use sluicegate_protocol::{Verdict, WithoutStore};

use super::open::{Open, tightest};
use super::{Basis, Fallback};
use crate::decide::effective::{EffectiveChecks, denial_ttl_ms};
use crate::decide::slots;
use crate::telemetry::verdict::{Decided, Source};

/// Makes a decision that needs no answer of the store.
pub(super) fn before_the_store<'a>(basis: &Basis<'a>, open: &mut Open<'a>) -> Option<Decided> {
    by_certificate(basis, open)
        .or_else(|| by_policy(basis, open))
        .or_else(|| by_override(basis, open))
        .or_else(|| by_lease(basis, open))
}

/// Makes a decision for which the store was asked.
pub(super) fn after_the_store(
    outcomes: &[Option<Outcome>],
    fallbacks: &[Fallback],
    now_us: u64,
    open: &mut Open<'_>,
) -> Option<Decided> {
    by_store(outcomes, now_us, open).or_else(|| by_share(fallbacks, now_us, open))
}

fn by_certificate(basis: &Basis<'_>, open: &Open<'_>) -> Option<Decided> {
    let (denials, moment) = basis.certificates?;
    let status = denials.covering(moment, open.asked)?;
    Some(Decided::by(Source::Certificate, Verdict::Denied(status)))
}

fn by_policy<'a>(basis: &Basis<'a>, open: &mut Open<'a>) -> Option<Decided> {
    match EffectiveChecks::of(
        basis.policy,
        open.asked,
        basis.overrides,
        basis.names_unknown,
    ) {
        Ok(all) => open.all = all,
        Err(problem) => return Some(open.refused(problem)),
    }
    open.draw_receipts(basis.drawn);
    None
}

fn by_override(basis: &Basis<'_>, open: &mut Open<'_>) -> Option<Decided> {
    let overridden = open.all.overridden?;
    // Units have to decide the other checks.
    if !overridden.is_blocked && !open.all.checks.is_empty() {
        return None;
    }
    let receipts = open.receipts();
    let unix_us = basis.overrides.unix_ms.saturating_mul(1_000);
    let denial_ttl_ms = denial_ttl_ms(basis.policy);
    let verdict = overridden.verdict(unix_us, denial_ttl_ms, receipts);
    Some(Decided::by(Source::Override, verdict))
}

fn by_lease(basis: &Basis<'_>, open: &mut Open<'_>) -> Option<Decided> {
    let leases = basis.leases.as_ref()?;
    let alone = open.all.checks.len() == 1;
    open.all.checks.retain(|check| {
        if !check.leasable {
            return true;
        }
        if let Some(units) = leases.leases.take(*check, leases.epoch, alone) {
            open.leased.push((check.index, units));
            return false;
        }
        open.along.extend(leases.along(*check));
        true
    });
    if !open.all.checks.is_empty() {
        return None;
    }
    open.spend();
    let status = tightest(&open.leased)?;
    Some(Decided::by(Source::Lease, Verdict::Admitted(status)))
}

fn by_store(outcomes: &[Option<Outcome>], now_us: u64, open: &mut Open<'_>) -> Option<Decided> {
    let outcome = outcomes.get(open.batch_index)?.as_ref()?;
    let mut status = open.status(outcome)?;
    if outcome.admitted {
        status.receipt = open.receipts();
    } else {
        // Rounded down: a certificate may end early and never late. When a slot will be free is not known.
        let retry_ms = match status.at_once {
            true => slots::MOST_HOLD_MS,
            false => outcome.retry_after_us / 1_000,
        };
        status.hold_ms = retry_ms.min(open.all.most_hold_ms);
    }
    Some(open.decided(outcome.admitted, status, Source::Store, now_us))
}

fn by_share(fallbacks: &[Fallback], now_us: u64, open: &mut Open<'_>) -> Option<Decided> {
    match fallbacks.get(open.batch_index)? {
        // Its denial is not cached, since units may be available as soon as the store is back. Of units it has no receipts, since
        // the store would not know them.
        Fallback::Share(outcome) => {
            let mut status = open.status(outcome)?;
            if outcome.admitted {
                status.receipt = open.receipts_of_slots();
            }
            Some(open.decided(outcome.admitted, status, Source::Share, now_us))
        }
        Fallback::NoVerdict(then) => {
            // A caller that admits the request spends the leased units too: their limits may not be among those that allow everything.
            let may_be = |then: &_| *then != WithoutStore::Allow || open.spend_live(now_us);
            let then = then.filter(may_be);
            Some(open.unavailable(then, Source::Store))
        }
    }
}
