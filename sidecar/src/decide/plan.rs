//! From checks to buckets and from outcomes back to verdicts. Pure, but for what certificates, leases and receipts need.

mod deciders;
mod open;

use std::sync::Arc;

use sluicegate_engine::{Batch, BatchBuilder, Bucket, Decision, Outcome, SlotId, Take};
use sluicegate_protocol::{Decision as Asked, Problem, WithoutStore};

use super::denials::{Denials, Moment};
use super::effective::EffectiveCheck;
use super::leases::LeaseBasis;
use super::overrides::OverridesNow;
use super::receipts::Receipt;
use crate::policy::{Limit, Policy};
use crate::telemetry::verdict::{Decided, Source};
use deciders::{after_the_store, before_the_store};
pub use open::Drawn;
use open::{Open, refused};

/// Which decisions a sidecar may make after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Everything: it knows the store's overrides, or cannot read them.
    Done,
    /// Decisions that need no answer of the store, with the policy file's overrides: the store is down.
    WithoutStore,
    /// Nothing yet.
    Waiting,
}

/// Everything that may decide before the store is asked.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// Which decisions may be made.
    pub start: Start,
    /// The policy in force.
    pub policy: &'a Policy,
    /// The overrides in force.
    pub overrides: OverridesNow<'a>,
    /// Whether answers may say which limits are unknown.
    pub names_unknown: bool,
    /// The cached denials, and when they were looked at.
    pub certificates: Option<(&'a Denials, Moment)>,
    /// The leases.
    pub leases: Option<LeaseBasis<'a>>,
    /// By whom slots are taken.
    pub drawn: Drawn,
}

impl<'a> Basis<'a> {
    /// A basis without certificates and leases: decisions that policy and overrides leave open go to the store.
    pub fn of(policy: &'a Policy, overrides: OverridesNow<'a>) -> Self {
        Self {
            start: Start::Done,
            policy,
            overrides,
            names_unknown: false,
            certificates: None,
            leases: None,
            drawn: Drawn::default(),
        }
    }
}

/// The answer to a decision for which the store gave no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This sidecar's share of the limits decided.
    Share(Outcome),
    /// No verdict. The policy may tell the caller what to do; `None` leaves it to the caller.
    NoVerdict(Option<WithoutStore>),
}

/// A request's decisions: the verdicts that are known, and the rest as a batch for the store.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// For the store.
    pub batch: Arc<Batch>,
    /// In the order of the request; `None` for those that are open.
    decided: Vec<Option<Decided>>,
    /// The decisions for which the store is asked, in the order of the request and of the batch.
    open: Vec<Open<'a>>,
    /// The store must not decide: this sidecar does not know its overrides.
    pub without_store: bool,
    /// A key is asked for with several quotas.
    pub has_mixed_specs: bool,
    /// The limits of checks with a quota that the policy does not accept, one entry for each check.
    pub refused_quotas: Vec<&'a Arc<Limit>>,
}

/// Adds a decision that only peeks at a bucket.
pub fn peek(builder: &mut BatchBuilder, of: &Bucket) -> usize {
    let bucket = builder.bucket(of.key.clone(), of.spec);
    builder.push(Decision {
        takes: vec![Take { bucket, cost: 0 }],
        peek: true,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    })
}

impl<'a> Plan<'a> {
    /// Makes the decisions that need no store, and collects the others for it.
    pub fn new(basis: Basis<'a>, asked: &'a [Result<Asked<'a>, Problem>]) -> Self {
        let mut plan = Self {
            without_store: basis.start == Start::WithoutStore,
            ..Self::default()
        };
        let mut builder = BatchBuilder::new();
        for (index, decision) in asked.iter().enumerate() {
            let decided = match decision {
                Err(problem) => Some(refused(problem.clone())),
                Ok(_) if basis.start == Start::Waiting => {
                    Some(Decided::unavailable(None, Source::Store, ""))
                }
                Ok(asked) => {
                    let mut open = Open::new(index, asked);
                    let decided = before_the_store(&basis, &mut open);
                    let decided = decided.map(|decided| open.naming_unknown(decided));
                    plan.refused_quotas.append(&mut open.all.refused_quotas);
                    let decided = decided.or_else(|| open.add_to(&mut builder));
                    if decided.is_none() {
                        plan.open.push(open);
                    }
                    decided
                }
            };
            plan.decided.push(decided);
        }
        // After the decisions themselves: their order says which is which.
        for open in &mut plan.open {
            for along in &mut open.along {
                along.add_to(&mut builder);
            }
        }
        plan.has_mixed_specs = builder.has_mixed_specs();
        plan.batch = Arc::new(builder.finish());
        plan
    }

    /// The decisions for the store with the limits that they take from, in the order of the batch.
    pub fn takes(&self) -> impl Iterator<Item = (&Decision, impl Iterator<Item = &Limit> + Clone)> {
        let limits = self.open.iter().map(|open| {
            let takes = open.by_take();
            takes.map(|(check, _)| check.limit.as_ref())
        });
        self.batch.decisions.iter().zip(limits)
    }

    /// Limits with how many of their slots had ended, as outcomes found. Of a decision with several limits of slots, the first is told.
    pub fn ended<'p>(
        &'p self,
        outcomes: &'p [Option<Outcome>],
    ) -> impl Iterator<Item = (&'p Limit, u64)> {
        let answered = self.open.iter().zip(outcomes);
        answered.filter_map(|(open, outcome)| {
            let ended = outcome.as_ref()?.ended;
            let mut checks = open.all.checks.iter().filter(|_| ended > 0);
            let check = checks.find(|check| check.limit.expire_us().is_some())?;
            Some((check.limit.as_ref(), ended))
        })
    }

    /// The checks that leases might have decided and the store did, with its outcomes, and whether the check decided.
    pub fn for_leases<'p>(
        &'p self,
        outcomes: &'p [Option<Outcome>],
    ) -> impl Iterator<Item = (EffectiveCheck<'a>, &'p Outcome, bool)> {
        let answered = self.open.iter().zip(outcomes);
        let answered = answered.filter_map(|(open, outcome)| Some((open, outcome.as_ref()?)));
        answered.flat_map(|(open, outcome)| {
            let decided_by = open.by_take().nth(outcome.decided_by);
            let decided_by = decided_by.map(|(check, _)| check.index);
            let leasable = open.all.checks.iter().filter(|check| check.leasable);
            leasable.map(move |check| (*check, outcome, decided_by == Some(check.index)))
        })
    }

    /// Adds the leases that the call took along to their pools; `epoch`: the one that is in force by now.
    pub fn settle_leases(&mut self, outcomes: &[Option<Outcome>], epoch: u64) {
        let along = self.open.iter_mut().flat_map(|open| open.along.drain(..));
        along.for_each(|along| along.settle(outcomes, epoch));
    }

    /// What decisions of the request reserve, by their index in it, with the secrets of the receipts.
    pub fn reserves(&self) -> Vec<(usize, u128, EffectiveCheck<'a>)> {
        let reserves = self.open.iter().flat_map(|open| {
            let checks = open.all.checks.iter();
            let settled = checks.filter(|check| check.within_us.is_some());
            settled.filter_map(|check| match open.receipt(check.index)? {
                Receipt::Hold(secret) => Some((open.index, secret, *check)),
                Receipt::Slots(_) => None,
            })
        });
        reserves.collect()
    }

    /// The slots that decisions of the request want, by their index in it.
    pub fn slots(&self) -> impl Iterator<Item = (usize, Bucket, SlotId)> {
        self.open.iter().flat_map(|open| {
            let decision = self.batch.decisions.get(open.batch_index);
            let slots = decision.into_iter().flat_map(Decision::stores);
            slots.filter_map(|slots| {
                let bucket = self.batch.buckets.get(slots.bucket)?;
                Some((open.index, bucket.clone(), slots.id))
            })
        })
    }

    /// The decisions of the request that the store has denied, by their index in it.
    pub fn denied_by(&self, outcomes: &[Option<Outcome>]) -> Vec<usize> {
        let answered = self.open.iter().filter_map(|open| {
            let outcome = outcomes.get(open.batch_index)?.as_ref()?;
            (!outcome.admitted).then_some(open.index)
        });
        answered.collect()
    }

    /// The verdicts, in the order of the request. An outcome is `None` if the store did not answer; then the fallback at the
    /// same index decides, if there is one. Spends what was taken from leases for decisions that are admitted at `now_us`, of
    /// the monotonic clock; the rest is put back.
    pub fn verdicts(
        self,
        outcomes: &[Option<Outcome>],
        fallbacks: &[Fallback],
        now_us: u64,
    ) -> Vec<Decided> {
        let mut open = self.open.into_iter();
        let mut next_open = || {
            let mut open = open.next()?;
            let decided = after_the_store(outcomes, fallbacks, now_us, &mut open);
            let decided = decided.unwrap_or_else(|| open.unavailable(None, Source::Store));
            Some(open.naming_unknown(decided))
        };
        let decided = self.decided.into_iter();
        let decided = decided.filter_map(|decided| decided.or_else(&mut next_open));
        decided.collect()
    }
}

#[cfg(test)]
mod tests;
