//! Who decides: each of these in turn, the first that can.
//!
//! | | decides |
//! |---|---|
//! | [`ByCertificate`] | what was denied a moment ago and still is |
//! | [`ByPolicy`] | what the policy cannot decide: an error |
//! | [`ByOverride`] | blocked and unlimited keys |
//! | [`ByLease`] | what units suffice for that this sidecar took in advance |
//! | [`ByStore`] | the rest, in one call for all decisions of a request |
//! | [`ByShare`] | that, if the store gave no outcome: this sidecar's share, or what the policy says then |

use std::sync::Arc;

use sluicegate_engine::{Batch, Outcome};
use sluicegate_protocol::Verdict;

use super::Basis;
use super::open::{Open, refused, spend, tightest};
use crate::clock;
use crate::decide::denials::{Denials, Moment};
use crate::decide::effective::EffectiveChecks;
use crate::decide::fallback::Fallback;
use crate::decide::leases;
use crate::decide::overridden::How;
use crate::decide::receipts;
use crate::telemetry::verdict::{Decided, Source};

/// Decides what it can. What it leaves goes to the next.
pub(super) trait Decider<'a> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided>;
}

pub(super) struct ByCertificate<'a>(pub Option<(&'a Denials, Moment)>);

impl<'a> Decider<'a> for ByCertificate<'a> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        let (denials, moment) = self.0?;
        let status = denials.covering(moment, open.asked)?;
        Some(Decided::by(Source::Certificate, Verdict::Denied(status)))
    }
}

pub(super) struct ByPolicy<'a>(pub Basis<'a>);

impl<'a> Decider<'a> for ByPolicy<'a> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        match EffectiveChecks::of(self.0.policy, open.asked, self.0.overrides) {
            Ok(all) => open.all = all,
            Err(problem) => return Some(refused(open.in_request(problem))),
        }
        None
    }
}

pub(super) struct ByOverride {
    /// The time of the overrides.
    pub unix_us: u64,
    pub denial_ttl_ms: u64,
}

impl<'a> Decider<'a> for ByOverride {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        let overridden = open.all.overridden?;
        let receipt = match overridden.how {
            How::Denied { .. } => Vec::new(),
            // The other checks take units.
            How::Admitted if !open.all.checks.is_empty() => return None,
            How::Admitted => {
                let secrets = open.all.receipts.iter().filter_map(|_| receipts::secret());
                secrets.map(receipts::to_text).collect()
            }
        };
        let verdict = overridden.verdict(self.unix_us, self.denial_ttl_ms, receipt);
        Some(Decided::by(Source::Override, verdict))
    }
}

pub(super) struct ByLease<'a>(pub Basis<'a>);

impl<'a> Decider<'a> for ByLease<'a> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        let (leases, epoch) = self.0.leases?;
        let denial_ttl_us = clock::micros(self.0.policy.denial_ttl);
        let alone = open.all.checks.len() == 1;
        open.all.checks.retain(|check| {
            if !check.leasable {
                return true;
            }
            if let Some(held) = leases.take(*check, epoch, alone) {
                open.leased.push((check.index, held));
                return false;
            }
            let longest_us = leases::longest_us(check.limit);
            if denial_ttl_us > longest_us && leases.was_denied(*check, epoch) {
                let marker = leases::marker(check.limit, check.key);
                open.peeks
                    .extend(marker.map(|marker| (check.index, marker, usize::MAX)));
            }
            true
        });
        if !open.all.checks.is_empty() {
            return None;
        }
        spend(&open.leased);
        let status = tightest(&open.leased)?;
        Some(Decided::by(Source::Lease, Verdict::Admitted(status)))
    }
}

pub(super) struct ByStore<'p> {
    pub batch: &'p Arc<Batch>,
    pub outcomes: &'p [Option<Outcome>],
    pub denial_ttl_ms: u64,
    pub now_us: u64,
}

impl<'a> Decider<'a> for ByStore<'_> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        let outcome = self.outcomes.get(open.batch_index)?.as_ref()?;
        let mut status = open.status(self.batch, outcome)?;
        let mut most_ms = self.denial_ttl_ms.min(open.all.most_hold_ms);
        if !open.has_nothing_leased(outcome, self.outcomes) {
            most_ms = most_ms.min(open.all.most_hold_leased_ms);
        }
        if outcome.admitted {
            status.receipt = open.receipts();
        } else {
            // Rounded down: a certificate may end early and never late.
            status.hold_ms = (outcome.retry_after_us / 1_000).min(most_ms);
        }
        Some(open.decided(outcome.admitted, status, Source::Store, self.now_us))
    }
}

pub(super) struct ByShare<'p> {
    pub batch: &'p Arc<Batch>,
    pub fallbacks: &'p [Fallback],
    pub now_us: u64,
}

impl<'a> Decider<'a> for ByShare<'_> {
    fn decide(&self, open: &mut Open<'a>) -> Option<Decided> {
        match self.fallbacks.get(open.batch_index)? {
            // Its denial is not cached, since the units may be available as soon as the store is back, which knows of no receipt.
            Fallback::Share(outcome) => {
                let status = open.status(self.batch, outcome)?;
                Some(open.decided(outcome.admitted, status, Source::Share, self.now_us))
            }
            Fallback::NoVerdict(then) => {
                let then = open.without_store(*then, self.now_us);
                Some(open.unavailable(then, Source::Store))
            }
        }
    }
}
